//! Every variant that a device can run, forced, against float64 on the first GPU, software devices included. A machine without a GPU
//! skips them.

use burn::tensor::{Device, TensorData};
use cubecl::ir::DeviceProperties;

use super::super::tests::{Data, Reference, data, difference, packed, reference, spec, to_f64};
use super::*;
use crate::ops::cube::cubes;

fn gpu() -> Option<Device> {
    let found = crate::device::available().into_iter().next().filter(|first| first.device != Device::flex());
    if found.is_none() {
        eprintln!("skipped: this build drives no GPU of this machine");
    }
    found.map(|gpu| gpu.device)
}

fn upload<const N: usize>(values: [&[f32]; N], tokens: usize, device: &Device) -> [CubeTensor; N] {
    let tensors = values.map(|x| {
        Tensor::<2>::from_data(TensorData::new(x.to_vec(), [tokens, x.len() / tokens]), (device, DType::F32))
    });
    cubes(tensors).unwrap_or_else(|_| panic!("a GPU's tensors"))
}

fn download(x: &CubeTensor) -> Vec<f32> {
    tensor::<2>(x.clone()).into_data().try_to_vec().expect("float32")
}

/// As [`variants`], on the same device with less shared memory.
fn variants_in(shared: usize, pass: Pass, like: &CubeTensor, spec: &Spec) -> Vec<Variant> {
    let mut properties: DeviceProperties = like.client.properties().clone();
    properties.hardware.max_shared_memory_size = properties.hardware.max_shared_memory_size.min(shared);
    variants(pass, spec.head_dim, element(like), &properties)
}

fn check(layout: &Layout, spec: &Spec, shared: usize, device: &Device) -> usize {
    let data: Data<f32> = data(11, layout.num_tokens(), spec);
    let expected: Reference = reference(&to_f64(&data), layout, spec);
    let operands = upload([&data.q, &data.k, &data.v], layout.num_tokens(), device);
    let call = Call::new(&operands.each_ref(), layout, spec).expect("one type");
    let close = |what: &str, variant: Variant, found: &CubeTensor, again: &CubeTensor, expected: &[f64]| {
        let (found, again) = (download(found), download(again));
        let difference = difference(&found, expected);
        assert!(found.iter().all(|x| x.is_finite()));
        assert!(difference <= 1e-5, "{what} by {variant} differs by {difference:e}: {spec:?}");
        assert_eq!(found, again, "{what} by {variant}: two runs give the same bits");
    };
    let mut count = 0;
    for variant in variants_in(shared, Pass::Forward, call.like, spec) {
        let run = || call.forward(variant, &operands);
        let ([out, lse], again) = (run(), run());
        let wide: Vec<f64> = expected.lse.clone();
        close("out", variant, &out, &again[0], &expected.out);
        close("lse", variant, &lse, &again[1], &wide);
        count += 1;
    }
    let [q, k, v] = &operands;
    let out: Vec<f32> = expected.out.iter().map(|&x| x as f32).collect();
    let lse: Vec<f32> = expected.lse.iter().map(|&x| x as f32).collect();
    let [out, dout, lse] = upload([&out, &data.dout, &lse], layout.num_tokens(), device);
    let delta = call.delta(&out, &dout);
    let operands = [q, k, v, &dout, &lse, &delta];
    for variant in variants_in(shared, Pass::Queries, call.like, spec) {
        let ([dq], [again]) = (call.queries(variant, operands), call.queries(variant, operands));
        close("dq", variant, &dq, &again, &expected.dq);
        count += 1;
    }
    for variant in variants_in(shared, Pass::Keys, call.like, spec) {
        let ([dk, dv], again) = (call.keys(variant, operands), call.keys(variant, operands));
        close("dk", variant, &dk, &again[0], &expected.dk);
        close("dv", variant, &dv, &again[1], &expected.dv);
        count += 1;
    }
    count
}

#[test]
fn every_variant_computes_the_same() {
    let Some(gpu) = gpu() else { return };
    let layout = packed(&[150, 1, 70]);
    for (head_dim, soft_cap, window) in
        [(64, None, None), (80, Some(5.0), None), (128, None, Some(40)), (256, Some(20.0), Some(100))]
    {
        let spec = Spec { soft_cap, window, ..spec(2, 1, head_dim) };
        let count = check(&layout, &spec, usize::MAX, &gpu);
        eprintln!("{count} variants for heads of {head_dim}");
        assert!(count > 3, "there is something to choose from");
    }
}

/// The tiles for devices of 16 KiB.
#[test]
fn every_variant_for_little_shared_memory_computes_the_same() {
    let Some(gpu) = gpu() else { return };
    for head_dim in [64, 128] {
        check(&packed(&[90, 40]), &spec(2, 2, head_dim), 16 * 1024, &gpu);
    }
}

/// Variants are measured on the device, and what's chosen is kept: the file has a line for each pass, that another run finds.
#[test]
fn variants_are_measured_and_kept() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().expect("a folder for the test");
    tuning::set(tuning::Tuning::Measured { folder: Some(folder.path().to_owned()) }, |line| {
        eprintln!("{line}")
    });
    let (layout, spec) = (packed(&[200]), spec(1, 1, 64));
    let data: Data<f32> = data(12, 200, &spec);
    let operands = upload([&data.q, &data.k, &data.v], 200, &gpu);
    let call = Call::new(&operands.each_ref(), &layout, &spec).expect("one type");
    let expected = reference(&to_f64(&data), &layout, &spec);
    let [out, _] =
        measured(Pass::Forward, &call, |variant| call.forward(variant, &operands)).expect("it can run");
    assert!(difference(&download(&out), &expected.out) <= 1e-5);
    let file =
        std::fs::read_dir(folder.path()).expect("the folder").next().expect("a file").expect("it").path();
    let text = std::fs::read_to_string(file).expect("text");
    let line = text.lines().nth(1).expect("a choice");
    let (kind, choice) = line.split_once('\t').expect("a kind and a variant");
    assert_eq!(kind, "attention forward, f32, head_dim 64, 1 heads per key, 128 keys, 256 rows");
    let [first, ..] = variants(Pass::Forward, 64, element(call.like), call.like.client.properties())[..]
    else {
        panic!("variants")
    };
    eprintln!("{choice}, the table has {first}");
    // What the file says runs, in a process that starts with it.
    let forced = text.replace(choice, "32x32");
    let path =
        std::fs::read_dir(folder.path()).expect("the folder").next().expect("a file").expect("it").path();
    std::fs::write(path, forced).expect("the file");
    tuning::set(tuning::Tuning::Measured { folder: Some(folder.path().to_owned()) }, |line| panic!("{line}"));
    let ran = std::sync::Mutex::new(Vec::new());
    measured(Pass::Forward, &call, |variant| {
        ran.lock().expect("nobody panics").push(variant.to_string());
        call.forward(variant, &operands)
    });
    assert_eq!(*ran.lock().expect("nobody panics"), ["32x32"]);
    tuning::set(tuning::Tuning::Table, |_| ());
}
