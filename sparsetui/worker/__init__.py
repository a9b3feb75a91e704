"""The process that runs the user's code, and how we talk to it.

``handle`` is the way in. ``child`` is what runs inside the variant's own interpreter, so nothing may be imported here.
"""
