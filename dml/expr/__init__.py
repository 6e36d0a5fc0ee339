"""What is computed: nodes, schemas, column expressions, the facts operators state, fingerprints."""
