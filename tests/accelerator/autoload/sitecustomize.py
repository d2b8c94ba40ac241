"""With this folder on PYTHONPATH the device is there when Python starts, as a GPU is when torch is imported.

Autograd counts the devices at the first backward of a process, and Gradmend makes one when it is armed.
"""

import walled

walled.register()
