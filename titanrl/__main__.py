"""``python -m titanrl``."""

from titanrl.cli import main

if __name__ == "__main__":
    main()
