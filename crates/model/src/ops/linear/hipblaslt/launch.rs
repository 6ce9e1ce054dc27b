//! Products of tensors on an AMD GPU by hipBLASLt, when it's there and multiplies as the portable product does.
//!
//! CubeCL keeps its stream to itself. The library runs on a stream of its own: what CubeCL has enqueued is waited for first, and the
//! product after. That costs some tens of microseconds a product, of the milliseconds that the products of a large model take.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_cubecl::CubeDevice;
use burn_cubecl::tensor::CubeTensor;
use cubecl::hip::compute::HipServer;
use cubecl::server::Handle;

use super::super::super::cube::{cubes, empty, tensor};
use super::super::plain;
use super::{Element, Error, HipBlasLt, LIBRARIES, Operands, Product};

/// What a kernel of the library may use.
const WORKSPACE: usize = 32 << 20;
/// Norm of a difference over the norm: several roundings of bfloat16, far below what a wrong layout gives.
const TOLERANCE: f64 = 1e-2;

static CHOSEN: OnceLock<Chosen> = OnceLock::new();

/// The library on the device of this process.
struct Chosen {
    library: HipBlasLt,
    stream: *mut c_void,
    device: c_int,
}

// SAFETY: HIP's streams may be used from any thread.
unsafe impl Send for Chosen {}
// SAFETY: as above.
unsafe impl Sync for Chosen {}

/// Has products on `device` computed by the library from here on, if it's one of HIP's, and if the library is there and right.
/// Returns whether, or why not; `None` where the question doesn't arise.
pub(in super::super) fn choose(device: &Device) -> Option<Result<(), String>> {
    let like = cubes([Tensor::<2>::zeros([1, 1], device)]).ok()?;
    let CubeDevice::Hip(amd) = &like[0].device else { return None };
    let chosen = Chosen::load(amd.index as c_int)
        .and_then(|chosen| chosen.check_against_portable(device).map(|()| chosen));
    Some(chosen.map(|chosen| drop(CHOSEN.set(chosen))).map_err(|error| error.to_string()))
}

/// `op(a) op(b)` of `output`'s type, of matrices of one type; none where the library isn't used or can't.
pub(in super::super) fn product(
    a: &Tensor<2>,
    b: &Tensor<2>,
    transposed: [bool; 2],
    output: DType,
) -> Option<Tensor<2>> {
    CHOSEN.get()?.product(a, b, transposed, output)?.ok()
}

impl Chosen {
    fn load(device: c_int) -> Result<Self, Error> {
        let mut stream = null_mut();
        // SAFETY: the device is one that HIP listed; writes a stream to where it's told to.
        let status = unsafe {
            cubecl_hip_sys::hipSetDevice(device);
            cubecl_hip_sys::hipStreamCreateWithFlags(&mut stream, cubecl_hip_sys::hipStreamNonBlocking)
        };
        hip("hipStreamCreateWithFlags", status)?;
        Ok(Self { library: HipBlasLt::load(&LIBRARIES)?, stream: stream.cast(), device })
    }

    /// The three products of a dense layer, in both compute types.
    fn check_against_portable(&self, device: &Device) -> Result<(), Error> {
        let random = |dims: [usize; 2], dtype| {
            Tensor::<2>::random(dims, Distribution::Uniform(-1.0, 1.0), device).cast(dtype)
        };
        for dtype in [DType::F32, DType::BF16] {
            let (x, w, dy) = (random([48, 64], dtype), random([64, 80], dtype), random([48, 80], dtype));
            let cases = [
                (&x, &w, [false, false], dtype, plain::forward(x.clone(), w.clone())),
                (&dy, &w, [false, true], dtype, plain::backward_input(dy.clone(), w.clone())),
                (&x, &dy, [true, false], DType::F32, plain::backward_weight(x.clone(), dy.clone())),
            ];
            for (a, b, transposed, output, expected) in cases {
                let product = describe(a.dims(), b.dims(), transposed, [dtype, output]);
                let Some(found) = self.product(a, b, transposed, output) else { continue };
                let error = distance(found?, expected);
                if error.is_nan() || error > TOLERANCE {
                    return Err(Error::Wrong { product, error: format!("{error:.1e}") });
                }
            }
        }
        Ok(())
    }

    fn product(
        &self,
        a: &Tensor<2>,
        b: &Tensor<2>,
        transposed: [bool; 2],
        output: DType,
    ) -> Option<Result<Tensor<2>, Error>> {
        let [a, b] = cubes([a.clone(), b.clone()]).ok()?;
        let here = matches!(&a.device, CubeDevice::Hip(amd) if amd.index as c_int == self.device);
        let known = a.dtype == b.dtype && [a.dtype, output].iter().all(|dtype| element(*dtype).is_some());
        if !here || !known {
            return None;
        }
        let dims = |buffer: &CubeTensor| [buffer.meta.shape()[0], buffer.meta.shape()[1]];
        let product = describe(dims(&a), dims(&b), transposed, [a.dtype, output]);
        let c = empty([product.m, product.n], output, &a);
        Some(self.multiply(product, &a, &b, &c).map(|()| tensor(c)))
    }

    fn multiply(
        &self,
        product: Product,
        a: &CubeTensor,
        b: &CubeTensor,
        c: &CubeTensor,
    ) -> Result<(), Error> {
        let client = &a.client;
        let workspace = client.empty(WORKSPACE);
        let failed = |call| move |_| Error::Call { call, status: -1 };
        let resource = |handle: &Handle| {
            client.get_resource::<HipServer>(handle.clone()).map_err(failed("get_resource"))
        };
        // Held until the stream is done, so that nobody else is given the memory.
        let [ra, rb, rc, rw] =
            [resource(&a.handle)?, resource(&b.handle)?, resource(&c.handle)?, resource(&workspace)?];
        cubecl::future::block_on(client.sync()).map_err(failed("sync"))?;
        let operands = Operands {
            a: ra.resource().ptr,
            b: rb.resource().ptr,
            c: rc.resource().ptr,
            workspace: rw.resource().ptr,
            workspace_bytes: WORKSPACE,
        };
        // SAFETY: the buffers are contiguous matrices of the product's sizes on this device, and live until the stream is done,
        // which is waited for; what wrote them is done.
        unsafe {
            hip("hipSetDevice", cubecl_hip_sys::hipSetDevice(self.device))?;
            self.library.multiply(product, operands, self.stream)?;
            hip("hipStreamSynchronize", cubecl_hip_sys::hipStreamSynchronize(self.stream.cast()))
        }
    }
}

/// Sizes and types of `op(a) op(b)` for matrices of these shapes and element types (of operands and result) that are known.
fn describe(
    a: [usize; 2],
    b: [usize; 2],
    [a_transposed, b_transposed]: [bool; 2],
    [inputs, output]: [DType; 2],
) -> Product {
    let (m, k) = if a_transposed { (a[1], a[0]) } else { (a[0], a[1]) };
    let n = if b_transposed { b[0] } else { b[1] };
    let [inputs, output] = [inputs, output].map(|dtype| element(dtype).unwrap_or(Element::F32));
    Product { m, n, k, a_transposed, b_transposed, inputs, output }
}

fn element(dtype: DType) -> Option<Element> {
    match dtype {
        DType::F32 => Some(Element::F32),
        DType::BF16 => Some(Element::Bf16),
        _ => None,
    }
}

/// Norm of the difference over the norm.
fn distance(found: Tensor<2>, expected: Tensor<2>) -> f64 {
    let values = |tensor: Tensor<2>| tensor.to_data().iter::<f64>().collect::<Vec<_>>();
    let (found, expected) = (values(found), values(expected));
    let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
    let difference = squares(&mut found.iter().zip(&expected).map(|(x, y)| x - y));
    (difference / squares(&mut expected.iter().copied())).sqrt()
}

fn hip(call: &'static str, status: cubecl_hip_sys::hipError_t) -> Result<(), Error> {
    match status == cubecl_hip_sys::HIP_SUCCESS {
        true => Ok(()),
        false => Err(Error::Call { call, status: status as c_int }),
    }
}
