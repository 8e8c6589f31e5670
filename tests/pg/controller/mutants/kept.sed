# While ranks have joined, requests for which zeros cannot stand get slots.
s/if (joined_count > 0 && !zeros_can_stand(ran.request)) return;//
