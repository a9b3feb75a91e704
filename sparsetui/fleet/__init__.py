"""One investigation across a fleet: is it the host or the release?"""
