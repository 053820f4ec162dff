"""Generated from protos/specdec/v1 by `make proto`; never edited."""
