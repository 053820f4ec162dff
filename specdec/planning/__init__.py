"""What a split system will do, from what its parts cost: rates, capacity, money. Arithmetic; nothing is measured."""
