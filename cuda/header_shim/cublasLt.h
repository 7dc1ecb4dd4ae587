// Stands in for the header of this name of the CUDA toolkit: LibTorch's headers name these types in
// declarations, and nothing here uses them.
#pragma once
typedef struct cublasLtContext* cublasLtHandle_t;
