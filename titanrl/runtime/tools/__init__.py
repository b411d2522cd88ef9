"""Tools of the policy: schemas, calls in a response, and their execution with limits."""
