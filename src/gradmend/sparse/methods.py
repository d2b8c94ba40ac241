"""The operations of ops/ as SparseTensor has them, for editors and type checkers: their signatures are in methods.pyi."""


class Methods:
    """Empty at run time: api.attach() puts each operation on SparseTensor itself."""
