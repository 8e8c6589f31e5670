# Ranks that have joined give zeros for any request that has a slot.
s/if (!zeros_can_stand(slot.request)) state.forget_slot(slot);//
