#pragma once

#include <memory>

namespace gloo {
class Algorithm;
}
