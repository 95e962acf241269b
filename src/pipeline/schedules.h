// The schedules, for the table in schedule.cc: one a file.
#pragma once

#include "pipeline/schedule.h"

namespace meshtrain {

extern const PipelineSchedule kGpipe;
extern const PipelineSchedule kOneFOneB;
extern const PipelineSchedule kInterleaved;
extern const PipelineSchedule kZbH1;

}  // namespace meshtrain
