"""`python -m clearhead`: the command line."""

from clearhead.cli import main

if __name__ == "__main__":
    main()
