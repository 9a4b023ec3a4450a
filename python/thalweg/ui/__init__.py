"""What people see: units, tables, progress, errors in words, one JSON document."""
