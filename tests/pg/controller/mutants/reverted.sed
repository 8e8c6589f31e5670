# A request that waits in a slot whose name another rank has changed is forgotten.
s/if (Slot\* const slot = cache.find(request.name)) forget_slot(\*slot);/if (Slot* const slot = cache.find(request.name)) cache.erase(*slot);/
