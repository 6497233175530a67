"""`python -m clearhead`: the command line."""

from clearhead import cli, system

if __name__ == "__main__":
    system.end_with_launcher()
    cli.main()
