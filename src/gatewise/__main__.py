"""`python -m gatewise` is `gatewise`."""

from gatewise.import_path import leave_out_working_folder

if __name__ == "__main__":
    # Python puts the working folder first, and `gatewise` does not; before torch and others are imported.
    leave_out_working_folder(keep=__file__.rpartition("gatewise")[0])

    from gatewise.cli.main import main

    main()
