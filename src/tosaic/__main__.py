"""`python -m tosaic`: the command `tosaic`."""

from tosaic.cli import main

if __name__ == "__main__":
    main()
