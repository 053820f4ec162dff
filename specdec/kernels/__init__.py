"""Linear layers on CPU: several ways to multiply, one of them chosen for each shape and number of rows."""
