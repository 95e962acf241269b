// The factories in the table of grad_sync.cc.
#pragma once

#include <memory>

#include "gradsync/grad_sync.h"

namespace meshtrain::gradsync {

std::unique_ptr<GradSync> make_ddp(const GradSyncParts& parts, const GradSyncOptions& options);
std::unique_ptr<GradSync> make_zero1(const GradSyncParts& parts, const GradSyncOptions& options);
std::unique_ptr<GradSync> make_zero2(const GradSyncParts& parts, const GradSyncOptions& options);
std::unique_ptr<GradSync> make_zero3(const GradSyncParts& parts, const GradSyncOptions& options);

}  // namespace meshtrain::gradsync
