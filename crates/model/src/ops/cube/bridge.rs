//! From burn's tensors to buffers and back. Without burn's fusion they are the same; with it a tensor is a promise, which is kept
//! when its buffer is asked for.

use burn_cubecl::tensor::CubeTensor;

#[cfg(not(feature = "fusion"))]
pub(super) use eager::*;
#[cfg(feature = "fusion")]
pub(super) use lazy::*;

#[cfg(not(feature = "fusion"))]
mod eager {
    use super::CubeTensor;

    pub(in super::super) fn floats(tensor: CubeTensor) -> CubeTensor {
        tensor
    }

    pub(in super::super) fn integers(tensor: CubeTensor) -> CubeTensor {
        tensor
    }

    pub(in super::super) fn tensor(buffer: CubeTensor) -> CubeTensor {
        buffer
    }
}

#[cfg(feature = "fusion")]
mod lazy {
    use burn::backend::TensorMetadata;
    use burn_cubecl::CubeBackend;
    use burn_cubecl::fusion::{CubeFusionHandle, FusionCubeRuntime};
    use burn_fusion::FusionTensor;
    use burn_fusion::custom::{CustomOpIr, OperationFn, OperationIr, OperationOutput, StreamId, TensorIr};

    use super::CubeTensor;

    type Promise = FusionTensor<FusionCubeRuntime>;

    pub(in super::super) fn floats(tensor: Promise) -> CubeTensor {
        tensor.client.clone().resolve_tensor_float::<CubeBackend>(tensor)
    }

    pub(in super::super) fn integers(tensor: Promise) -> CubeTensor {
        tensor.client.clone().resolve_tensor_int::<CubeBackend>(tensor)
    }

    /// An operation without inputs, whose output is there already.
    pub(in super::super) fn tensor(buffer: CubeTensor) -> Promise {
        let client = burn_fusion::get_client::<CubeBackend>(&buffer.device);
        let (shape, dtype) = (buffer.shape(), buffer.dtype);
        let id = client.register_tensor_handle(CubeFusionHandle::from(buffer));
        let operation = CustomOpIr::new("buffer", &[], &[TensorIr::uninit(id, shape, dtype)]);
        client
            .register(StreamId::current(), OperationIr::Custom(operation), OperationFn(|_: &mut _| Ok(())))
            .output()
    }
}
