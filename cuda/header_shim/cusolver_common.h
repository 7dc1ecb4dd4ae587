// Stands in for the header of this name of the CUDA toolkit: LibTorch's headers name these types in
// declarations, and nothing here uses them.
#pragma once
typedef enum { CUSOLVER_STATUS_SUCCESS = 0, CUSOLVER_STATUS_INVALID_VALUE = 3 } cusolverStatus_t;
