// A stand-in for an accelerator: torch's PrivateUse1 devices over ordinary memory.
//
// Every operation runs the CPU's kernel on the very bytes of the device, so that results equal the CPU's bit for bit.
// What a real accelerator adds is checked and counted: tensors of two devices do not meet, float64 is missing on the
// last device (as on Apple's), memory has a limit, and launches, waits of the host and uploads are counted.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <unistd.h>

namespace {
using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex DEVICES = 5;
constexpr DeviceIndex WITHOUT_FLOAT64 = DEVICES - 1;
const c10::DispatchKeySet KEYS(c10::DispatchKey::PrivateUse1);

bool is_ours(const Tensor& tensor) { return tensor.defined() && tensor.device().type() == KIND; }

// Counting ------------------------------------------------------------------------------------------------------

using Listener = void (*)(const char* kind, const char* operation);
std::mutex counting;  // a backward pass has a thread of its own
std::array<std::atomic<int64_t>, DEVICES> launches{}, waits{}, uploads{};
std::atomic<Listener> listener{nullptr};
thread_local bool within = false;  // an operation of ours: what it calls is no further one

struct Within {
  bool before = within;
  Within() { within = true; }
  ~Within() { within = before; }
};

void count(std::array<std::atomic<int64_t>, DEVICES>& counter, const char* kind, Device device, const std::string& what) {
  if (within) return;
  const bool first = counter[device.index()]++ == 0;
  if (first && std::strcmp(kind, "launch") == 0) {  // processes leave a note of the devices they have used
    if (const char* folder = std::getenv("STANDIN_NOTES"))
      std::ofstream(std::string(folder) + "/" + std::to_string(getpid()) + "-" + std::to_string(device.index()));
  }
  if (auto told = listener.load()) {
    std::lock_guard<std::mutex> held(counting);
    Within quiet;
    told(kind, what.c_str());
  }
}
void launch(Device device, const std::string& what) { count(launches, "launch", device, what); }
void wait(Device device, const std::string& what) { count(waits, "synchronisation", device, what); }
void upload(Device device, const std::string& what) { count(uploads, "upload", device, what); }

// Memory --------------------------------------------------------------------------------------------------------

std::array<std::atomic<int64_t>, DEVICES> live{}, peak{};
std::array<std::atomic<int64_t>, DEVICES> limits{};  // 0: none

void take(Device device, int64_t bytes) {
  const auto i = device.index();
  const int64_t now = (live[i] += bytes), limit = limits[i];
  if (limit && now > limit) {
    live[i] -= bytes;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "standin out of memory. Tried to allocate ", bytes, " bytes on ", device);
  }
  for (auto highest = peak[i].load(); now > highest && !peak[i].compare_exchange_weak(highest, now);) {}
}

thread_local DeviceIndex current = 0;

struct Allocator final : c10::Allocator {
  struct Block { void* bytes; int64_t size; Device device; };
  c10::DataPtr allocate(size_t size) override {
    const Device device(KIND, current);
    if (size == 0) return {nullptr, nullptr, [](void*) {}, device};
    take(device, size);
    auto* block = new Block{std::malloc(size), static_cast<int64_t>(size), device};
    std::memset(block->bytes, 0xAB, size);  // never zero by luck
    return {block->bytes, block, &release, device};
  }
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    live[block->device.index()] -= block->size;
    std::free(block->bytes);
    delete block;
  }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
};
Allocator allocator;
REGISTER_ALLOCATOR(KIND, &allocator);

// The same bytes as a tensor of the CPU.
Tensor on_host(const Tensor& tensor) {
  if (!is_ours(tensor)) return tensor;
  c10::Storage owner = tensor.storage();
  auto options = tensor.options().device(c10::kCPU).requires_grad(false);
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), [owner](void*) {}, options);
}

void check_dtype(Device device, at::ScalarType dtype) {
  TORCH_CHECK_TYPE(within || device.index() != WITHOUT_FLOAT64 || (dtype != at::kDouble && dtype != at::kComplexDouble),
                   "Cannot convert a standin Tensor to float64 dtype as ", device, " doesn't support float64.");
}

// A tensor that a kernel of the CPU has made, as one of the device; no byte is copied.
Tensor on_device(const Tensor& made, Device device) {
  within = false;  // the check is of what the user gets
  check_dtype(device, made.scalar_type());
  within = true;
  struct Owner { c10::Storage storage; int64_t size; Device device; };
  const auto size = static_cast<int64_t>(made.storage().nbytes());
  take(device, size);
  c10::DataPtr bytes(made.storage().mutable_data(), new Owner{made.storage(), size, device}, [](void* context) {
    auto* owner = static_cast<Owner*>(context);
    live[owner->device.index()] -= owner->size;
    delete owner;
  }, device);
  c10::Storage storage(c10::Storage::use_byte_size_t(), size, std::move(bytes), &allocator, true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), KEYS, made.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(made.sizes(), made.strides(), made.storage_offset());
  return tensor;
}

// Devices -------------------------------------------------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(Device device) {
    return c10::Stream(c10::Stream::DEFAULT, Device(KIND, device.has_index() ? device.index() : current));
  }
  c10::DeviceType type() const override { return KIND; }
  Device getDevice() const override { return {KIND, current}; }
  Device exchangeDevice(Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  void setDevice(Device device) const override {
    TORCH_CHECK(device.index() < DEVICES, "there are ", int(DEVICES), " stand-in devices, and none is ", device);
    uncheckedSetDevice(device);
  }
  void uncheckedSetDevice(Device device) const noexcept override { if (device.has_index()) current = device.index(); }
  c10::Stream getStream(Device device) const override { return stream(device); }
  c10::Stream getDefaultStream(Device device) const override { return stream(device); }
  c10::Stream getNewStream(Device device, int) const override { return stream(device); }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override { return stream(device); }
  c10::Stream exchangeStream(c10::Stream given) const override { return given; }
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }
  void record(void**, const c10::Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& given) const override { wait(given.device(), "synchronize"); }
  void synchronizeEvent(void*) const override { wait(getDevice(), "synchronize"); }
  void synchronizeDevice(const DeviceIndex index) const override { wait({KIND, index}, "synchronize"); }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Random final : c10::GeneratorImpl {
  at::Generator cpu;
  Random(DeviceIndex index, at::Generator given) : GeneratorImpl(Device(KIND, index), KEYS), cpu(std::move(given)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  Random* clone_impl() const override { return new Random(device().index(), cpu.clone()); }
};
at::Generator new_generator(DeviceIndex index) { return at::make_generator<Random>(index, at::detail::createCPUGenerator()); }
at::Generator& default_generator(DeviceIndex index) {
  static std::vector<at::Generator> generators = [] {
    std::vector<at::Generator> all;
    for (DeviceIndex i = 0; i < DEVICES; i++) all.push_back(new_generator(i));
    return all;
  }();
  return generators[index < 0 ? current : index];
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  void init() const override {}
  DeviceIndex deviceCount() const override { return DEVICES; }
  void setCurrentDevice(DeviceIndex index) const override { current = index; }
  DeviceIndex getCurrentDevice() const override { return current; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override { return std::exchange(current, index); }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return index < 0 ? current : exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(DeviceIndex index) const override { return new_generator(index < 0 ? current : index); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
  }
};
const bool registered = (at::RegisterPrivateUse1HooksInterface(new Hooks), true);

// Operations of our own: making tensors, and what crosses between host and device -----------------------------------

struct On {  // memory is taken on this device meanwhile
  DeviceIndex before = current;
  explicit On(std::optional<Device> device) { if (device && device->has_index()) current = device->index(); }
  ~On() { current = before; }
};

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<Device> device,
             std::optional<bool>, std::optional<at::MemoryFormat> format) {
  On chosen(device);
  check_dtype({KIND, current}, c10::dtype_or_default(dtype));
  return at::detail::empty_generic(size, &allocator, KEYS, c10::dtype_or_default(dtype), format);
}
Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                     std::optional<Device> device, std::optional<bool>) {
  On chosen(device);
  check_dtype({KIND, current}, c10::dtype_or_default(dtype));
  return at::detail::empty_strided_generic(size, stride, &allocator, KEYS, c10::dtype_or_default(dtype));
}
Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  if (is_ours(from) && is_ours(to)) launch(to.device(), "copy_");
  else if (is_ours(from)) wait(from.device(), "copy to the host");
  else upload(to.device(), "copy to the device");
  Within quiet;
  on_host(to).copy_(on_host(from));
  return to;
}
Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}
at::Scalar local_scalar_dense(const Tensor& self) {
  wait(self.device(), "item");
  return at::_local_scalar_dense(on_host(self));
}
[[noreturn]] void refuse(Device a, Device b, const std::string& argument, const std::string& operation) {
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", a, " and ", b,
              "! (when checking argument for argument ", argument, " in ", operation, ")");
}
bool equal(const Tensor& a, const Tensor& b) {
  if (a.device() != b.device()) refuse(a.device(), b.device(), "other", "equal");
  launch(a.device(), "equal");
  wait(a.device(), "equal");
  return at::equal(on_host(a), on_host(b));
}

// All others: on the CPU, after the checks that CUDA makes ------------------------------------------------------------

std::set<std::string> unchecked;  // operations that take a number (0-dim tensor) of the CPU, as TensorIterator does
const std::set<std::string> SIZED_BY_VALUES = {
    "aten::nonzero", "aten::nonzero.out", "aten::masked_select", "aten::masked_select.out", "aten::_unique", "aten::_unique2",
    "aten::unique_dim", "aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::bincount", "aten::histc",
    "aten::multinomial", "aten::_linalg_eigh.eigenvalues", "aten::_linalg_svd.U", "aten::linalg_lstsq"};
const std::set<std::string> INDEXED = {"aten::index.Tensor", "aten::index.Tensor_out", "aten::_index_put_impl_",
                                       "aten::_unsafe_index.Tensor", "aten::_unsafe_index_put"};

template <class Visit>
void visit_tensors(const c10::IValue& value, Visit visit) {
  if (value.isTensor()) visit(value.toTensor());
  else if (value.isTensorList()) for (const Tensor& each : value.toTensorVector()) visit(each);
  else if (value.isOptionalTensorList()) {
    for (const auto& each : value.toOptionalTensorVector()) if (each) visit(*each);
  }
}
template <class Change>
c10::IValue with_tensors(const c10::IValue& value, Change change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> list;
    for (const Tensor& each : value.toTensorVector()) list.push_back(change(each));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> list;
    for (const auto& each : value.toOptionalTensorVector()) list.push_back(each ? std::optional(change(*each)) : std::nullopt);
    return list;
  }
  return value;
}

struct Call {
  const c10::FunctionSchema& schema;
  torch::jit::Stack& stack;
  std::string name;
  size_t first;  // of the arguments on the stack
  Device device{KIND, current};

  Call(const c10::OperatorHandle& op, torch::jit::Stack& given)
      : schema(op.schema()), stack(given), name(schema.name()), first(given.size() - schema.arguments().size()) {
    if (!schema.overload_name().empty()) name += "." + schema.overload_name();
    bool known = false;
    for (size_t i = first; i < stack.size(); i++)
      visit_tensors(stack[i], [&](const Tensor& tensor) {
        if (is_ours(tensor) && !known) device = tensor.device(), known = true;
      });
    for (size_t i = first; i < stack.size() && !known; i++)
      if (stack[i].isDevice() && stack[i].toDevice().has_index()) device = stack[i].toDevice();
  }

  // Devices as CUDA wants them; true if the host has to wait for the size of the outcome.
  bool check() {
    bool waiting = SIZED_BY_VALUES.count(name) || (name == "aten::repeat_interleave.Tensor" && stack[first + 1].isNone());
    const bool indexed = INDEXED.count(name), lenient = indexed || unchecked.count(name);
    for (size_t i = 0; i < schema.arguments().size(); i++) {
      const auto& argument = schema.arguments()[i].name();
      const bool index = indexed && argument == "indices";
      visit_tensors(stack[first + i], [&](const Tensor& tensor) {
        if (!tensor.defined()) return;
        const bool mask = tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
        // Writing by a mask looks for its true entries first, unless it writes one value. (Reading did so before.)
        if (index && mask && name == "aten::_index_put_impl_") waiting = waiting || stack[first + 2].toTensor().numel() != 1;
        if (tensor.device() == device) return;
        if (index && !is_ours(tensor)) {  // CUDA moves indices itself; those of reading were moved before
          if (name == "aten::_index_put_impl_") upload(device, "indices");
        } else if (!(lenient && tensor.dim() == 0 && !is_ours(tensor))) refuse(device, tensor.device(), argument, name);
      });
      if (schema.arguments()[i].type()->str().find("Generator") != std::string::npos) use_generator_of_cpu(stack[first + i]);
    }
    return waiting;
  }

  void use_generator_of_cpu(c10::IValue& value) {
    auto given = value.isNone() ? default_generator(device.index()) : value.toGenerator();
    TORCH_CHECK(given.device().type() == KIND, "Expected a '", KIND, "' device type for generator but found '", given.device().type(), "'");
    value = static_cast<Random*>(given.unsafeGetGeneratorImpl())->cpu;
  }

  void run(const c10::OperatorHandle& op) {
    std::vector<std::pair<Tensor, Tensor>> twins;  // ours, and the CPU's on the same bytes
    std::vector<std::pair<Tensor, Tensor>> grown;  // an empty out=, and what the CPU fills in its place
    for (size_t i = 0; i < schema.arguments().size(); i++) {
      const auto* alias = schema.arguments()[i].alias_info();
      const bool written = alias && alias->isWrite();
      auto& value = stack[first + i];
      if (value.isDevice()) value = Device(c10::kCPU);
      value = with_tensors(value, [&](const Tensor& tensor) {
        if (!is_ours(tensor)) return tensor;
        Tensor other = on_host(tensor);
        if (written && tensor.numel() == 0) grown.emplace_back(tensor, other = at::empty(tensor.sizes(), tensor.options().device(c10::kCPU)));
        twins.emplace_back(tensor, other);
        return other;
      });
    }
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    On chosen(device);
    for (auto& [ours, filled] : grown) {
      if (filled.numel() == 0) continue;
      ours.resize_(filled.sizes());
      on_host(ours).copy_(filled);
    }
    for (size_t i = stack.size() - schema.returns().size(); i < stack.size(); i++)
      stack[i] = with_tensors(stack[i], [&](const Tensor& made) {
        if (!made.defined()) return made;
        for (auto& [ours, other] : twins) if (made.is_same(other)) return ours;
        for (auto& [ours, other] : twins)
          TORCH_CHECK(made.numel() == 0 || made.storage().data() != other.storage().data(), name, " gave a view: it needs a kernel of its own");
        return on_device(made, device);
      });
  }
};

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call call(op, *stack);
  const bool waiting = call.check();
  launch(call.device, call.name);
  if (waiting) wait(call.device, call.name);
  Within quiet;
  call.run(op);
}
}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("equal", &equal);
  m.impl("record_stream", [](Tensor&, c10::Stream) {});
  // CUDA has kernels for these; without one, torch composes them of others, which round otherwise and count as many.
  for (auto* name : {"native_layer_norm", "native_group_norm", "silu_backward", "mish_backward", "addr", "all.dims_out", "any.dims_out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("resize_", [](const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) -> const Tensor& {
    On chosen(self.device());
    return at::native::resize_(self, size, format);
  });
  m.impl("set_.source_Storage_storage_offset", [](Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) -> Tensor& {
    return at::native::set_storage_cpu_(self, source, offset, size, stride);
  });
  m.impl("set_.source_Storage", [](Tensor& self, at::Storage source) -> Tensor& { return at::native::set_(self, source); });
  m.impl("set_.source_Tensor", [](Tensor& self, const Tensor& source) -> Tensor& { return at::native::set_tensor_(self, source); });
  m.impl("set_", [](Tensor& self) -> Tensor& { return at::native::set_cpu_(self); });
}

// For Python ------------------------------------------------------------------------------------------------------

extern "C" {
int standin_devices() { return DEVICES; }
int64_t standin_launches(int device) { return launches[device]; }
int64_t standin_waits(int device) { return waits[device]; }
int64_t standin_uploads(int device) { return uploads[device]; }
int64_t standin_live(int device) { return live[device]; }
int64_t standin_peak(int device) { return peak[device]; }
void standin_forget_peak(int device) { peak[device] = live[device].load(); }
int64_t standin_limit(int device) { return limits[device]; }
void standin_set_limit(int device, int64_t bytes) { limits[device] = bytes; }
void standin_listen(Listener told) { listener = told; }
void standin_leave_unchecked(const char* operation) { unchecked.insert(operation); }
int standin_current() { return current; }
void standin_set_current(int device) { current = static_cast<DeviceIndex>(device); }
void standin_seed(int device, uint64_t seed) { default_generator(static_cast<DeviceIndex>(device)).set_current_seed(seed); }
}
