// Stands in for the header of this name of the CUDA toolkit: LibTorch's headers name these types in
// declarations, and nothing here uses them.
#pragma once
typedef struct cusparseContext* cusparseHandle_t;
typedef enum { CUSPARSE_STATUS_SUCCESS = 0 } cusparseStatus_t;
