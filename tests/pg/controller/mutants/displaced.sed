# A request that waits in a slot that makes room is forgotten.
s/if (displaced) speak(std::move(\*displaced));//
