// Stands in for the header of this name of the CUDA toolkit: LibTorch's headers name these types in
// declarations, and nothing here uses them.
#pragma once
#include <cuComplex.h>
typedef struct cublasContext* cublasHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS = 0 } cublasStatus_t;
