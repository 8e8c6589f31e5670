# Tensors of different dtypes agree.
s/if (a.dtype != b.dtype) return false;//
