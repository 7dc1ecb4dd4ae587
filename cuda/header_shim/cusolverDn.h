// Stands in for the header of this name of the CUDA toolkit: LibTorch's headers name these types in
// declarations, and nothing here uses them.
#pragma once
#include "cusolver_common.h"
typedef struct cusolverDnContext* cusolverDnHandle_t;
