"""From and to every other way of writing a sparse matrix down."""
