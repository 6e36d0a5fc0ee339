"""How it should be computed: normal form, rules, lowering to a plan, and their explanation."""
