"""Imports a module that does not exist."""

import a_module_that_nobody_has
from flwr.clientapp import ClientApp

app = ClientApp(a_module_that_nobody_has.mods())
