// The time that an operation should take, as pg/planning/cost_model.h predicts it. A value.
#pragma once

namespace taco::pg {

struct Cost {
  double seconds = 0;  // alone, from the moment all ranks have started to the last one's end
  // For how long of it the busiest rank's processor and the busiest host's cable are at work.
  // Operations that run at the same time share both.
  double processor = 0, wire = 0;
};

}  // namespace taco::pg
