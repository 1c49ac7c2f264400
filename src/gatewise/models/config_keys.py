"""Which keys of a transformers config an adapter follows, and which would silently make another model of it.

A key that the config class declares is read (by the adapter, or by the transformers modules whose weights and functions
it takes), inert (it changes no logit), or refused unless it has its default. Keys that no class declares and that
transformers reads all the same are refused; all others are let pass, since transformers ignores them, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any

from gatewise.errors import GatewiseError
from gatewise.files import shown

_SIZES = {
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
}
_READ = _SIZES | {"tie_word_embeddings"}
_GROUPED = _READ | {"num_key_value_heads", "hidden_act", "rms_norm_eps", "rope_parameters"}
_BIASES = {"attention_bias", "mlp_bias"}
_WINDOWS = {"use_sliding_window", "sliding_window", "max_window_layers", "layer_types"}
_GEMMA = (_GROUPED - {"hidden_act"}) | {
    "head_dim",
    "hidden_activation",
    "attention_bias",
    "query_pre_attn_scalar",
    "sliding_window",
    "layer_types",
    "final_logit_softcapping",
    "attn_logit_softcapping",
}
READ: Mapping[str, frozenset[str]] = {
    model_type: frozenset(keys)
    for model_type, keys in {
        "gpt2": {
            *("vocab_size", "n_positions", "n_embd", "n_layer", "n_head", "n_inner", "tie_word_embeddings"),
            *("activation_function", "layer_norm_epsilon", "add_cross_attention"),
            *("scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
        },
        "gpt_neo": {
            *(_READ - {"num_hidden_layers", "num_attention_heads"}),
            *("num_layers", "num_heads", "attention_types", "window_size", "activation_function", "layer_norm_epsilon"),
        },
        "gpt_neox": {
            *_READ,
            *("hidden_act", "layer_norm_eps", "use_parallel_residual", "rope_parameters", "attention_bias"),
        },
        "opt": {
            *(_READ - {"intermediate_size"}),
            *("ffn_dim", "word_embed_proj_dim", "do_layer_norm_before", "_remove_final_layer_norm"),
            *("activation_function", "enable_bias", "layer_norm_elementwise_affine"),
        },
        "llama": _GROUPED | _BIASES | {"head_dim"},
        "mistral": _GROUPED | {"head_dim", "sliding_window"},
        "qwen2": _GROUPED | _WINDOWS,
        "qwen3": _GROUPED | _WINDOWS | {"head_dim", "attention_bias"},
        "smollm3": {
            *(_GROUPED | _BIASES | (_WINDOWS - {"max_window_layers"})),
            *("no_rope_layers", "no_rope_layer_interval"),
        },
        "phi3": _GROUPED | {"sliding_window", "original_max_position_embeddings"},
        "gemma2": _GEMMA,
        "gemma3_text": _GEMMA,
        "olmo2": _GROUPED | {"attention_bias"},
    }.items()
}
INERT = frozenset(
    {
        # names, and what a call returns
        *("transformers_version", "architectures", "dtype", "output_hidden_states", "use_cache"),
        *("bos_token_id", "eos_token_id", "pad_token_id"),
        # of training: dropout, random weights, tensor parallelism of the makers
        *("resid_pdrop", "embd_pdrop", "attn_pdrop", "resid_dropout", "embed_dropout", "attention_dropout", "dropout"),
        *("hidden_dropout", "layerdrop", "initializer_range", "init_std", "pretraining_tp"),
        # of classifiers
        *("id2label", "label2id", "problem_type", "classifier_dropout"),
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
        # the order of the same operations
        *("chunk_size_feed_forward", "reorder_and_upcast_attn"),
    }
)
# Keys that no config class of ours declares, with the values that mean the same as leaving them out.
_NOTHING: tuple[Any, ...] = (None, False, {}, [])
UNDECLARED: Mapping[str, tuple[Any, ...]] = {
    "is_causal": (None, True),
    "attn_implementation": (None, "eager", "sdpa"),  # transformers may load others from a hub, as code
    "_attn_implementation": (None, "eager", "sdpa"),
    **dict.fromkeys(
        (
            "use_bidirectional_attention",
            "attention_chunk_size",
            "sliding_window",
            "layer_types",
            "per_layer_config",
            "num_kv_shared_layers",
            "number_of_conv_states",
            "tie_last_hidden_states",
            "num_mtp_layers",
            "quantization_config",
            "fusion_config",
            "distributed_config",
            "transformers_weights",
            "experts_implementation",
            "_experts_implementation",
            "add_cross_attention",
            "is_encoder_decoder",
            "decoder",
            "generator",
            "text_encoder",
            "text_config",
        ),
        _NOTHING,
    ),
}


def check_keys(config: Any) -> None:
    """Refuse a config with a value that its adapter does not follow.

    Args:
        config: Of a transformers module whose architecture has an adapter of ours.

    Raises:
        GatewiseError: A key has a value that would make another model.
    """
    declared = {field.name: field for field in fields(config)} if is_dataclass(config) else {}
    known = READ[config.model_type] | INERT
    for name, field in declared.items():
        value = getattr(config, name, None)
        if name not in known and not _is_default(value, field):
            raise _refused(config.model_type, name, value, "unless it has its default")
    for name, harmless in UNDECLARED.items():
        value = vars(config).get(name)
        if name not in declared and value not in harmless and value != ["full_attention"] * config.num_hidden_layers:
            raise _refused(config.model_type, name, value, "at all")


def check_undeclared(content: Mapping[str, Any], source: Any) -> None:
    """Refuse those of these keys that decide what transformers loads, before it does; `source` is named in errors."""
    for name in ("attn_implementation", "_attn_implementation", "quantization_config", "transformers_weights"):
        if content.get(name) not in UNDECLARED[name]:
            raise GatewiseError(
                f"{source}: {name} is {shown(content[name])}, which gatewise does not follow: transformers would load "
                f"other code or other weights for it. Remove it from the config, or load another form of the model."
            )


def _is_default(value: Any, field: Field[Any]) -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    return bool(value == default) or (not value and not default)  # None and False both mean that it is off


def _refused(model_type: str, name: str, value: Any, unless: str) -> GatewiseError:
    return GatewiseError(
        f"{model_type}: {name} is {shown(value)} in the model's config, and gatewise does not follow this key "
        f"{unless}, so that it would compute another model than transformers does. Load a model without it."
    )
