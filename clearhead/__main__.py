"""`python -m clearhead`: the command line."""

from clearhead.cli import main
from clearhead.system import end_with_launcher

if __name__ == "__main__":
    end_with_launcher()
    main()
