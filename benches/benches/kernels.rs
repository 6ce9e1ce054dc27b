//! Every implementation of `mt_model::ops::lab` on every device that this build drives, with criterion.
//!
//! `cargo bench -p benches --bench kernels [-- FILTER] [--save-baseline NAME | --baseline NAME]`. A case is called
//! `operation/implementation.device/shape_type_pass`; FILTER is a regular expression over that. `MT_LAB_GRID=full` measures every shape
//! (hours) instead of the few that are worth watching (minutes). At the end a table is printed, and `target/lab/report.html` written
//! with rooflines. PyTorch's attention (`$PYTHON`) is measured beside ours on the CPU. docs/kernels.md says more.

use std::error::Error;
use std::time::{Duration, Instant, SystemTime};

use benches::criterion_files::{baseline, folder, measured_since, median};
use benches::lab::attention::Attention;
use benches::lab::{Grid, Operation, Pass, adamw, cross_entropy, decode_attention, glu, rms_norm, rope};
use benches::machine::Roofs;
use benches::peer::Peer;
use benches::report::{self, Figure, Measured};
use burn::tensor::{DType, Device, Tensor};
use criterion::{BenchmarkId, Criterion, SamplingMode};
use mt_model::device::{Available, available};

fn main() -> Result<(), Box<dyn Error>> {
    let start = SystemTime::now();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .without_plots()
        .output_directory(&folder())
        .configure_from_args();
    let full = std::env::var("MT_LAB_GRID").is_ok_and(|grid| grid == "full");
    let mut lab = Lab { criterion, full, baseline: baseline(&arguments), figures: Vec::new() };

    lab.measure::<rms_norm::RmsNorm>();
    lab.measure::<rope::Rope>();
    lab.measure::<glu::Glu>();
    lab.measure::<cross_entropy::CrossEntropy>();
    lab.measure::<adamw::AdamW>();
    lab.measure::<decode_attention::DecodeAttention>();
    lab.measure::<Attention>();
    lab.measure_peer();
    lab.criterion.final_summary();
    lab.report(start)
}

struct Lab {
    criterion: Criterion,
    full: bool,
    baseline: String,
    /// Cases that ran, with the name that criterion knows them by; their times are read when all are done.
    figures: Vec<(String, Figure)>,
}

impl Lab {
    fn grid(&self, device: &Available) -> Grid {
        match self.full {
            _ if device.name.contains("software") => Grid::Tiny,
            true => Grid::Full,
            false => Grid::Small,
        }
    }

    /// All of an operation.
    fn measure<O: Operation + 'static>(&mut self) {
        for device in available() {
            let types = [DType::F32, DType::BF16, DType::F16];
            let types = types.map(|dtype| (dtype, device.device.supports_dtype(dtype)));
            for implementation in O::implementations() {
                for pass in O::passes(&implementation.functions) {
                    for (case, dtype) in O::measured(self.grid(&device)) {
                        // What the CPU's kernels don't take runs as the plain composition there.
                        let known = dtype != DType::F16 || device.device != Device::flex();
                        let supported = known && types.contains(&(dtype, true));
                        if !supported || !(implementation.runs_on)(&device.device, dtype) {
                            continue;
                        }
                        if !self.full && is_too_slow(implementation.name, &case.label()) {
                            continue;
                        }
                        let figure = figure::<O>(implementation.name, &device, &case, dtype, pass);
                        let functions = implementation.functions;
                        self.bench(figure, || timed(case, pass, functions, dtype, &device.device));
                    }
                }
            }
        }
    }

    /// PyTorch's attention on the shapes of which ours was measured.
    fn measure_peer(&mut self) {
        let devices = available();
        let Some(cpu) = devices.iter().find(|found| found.device == Device::flex()) else { return };
        let ours = |lab: &Self, figure: &Figure| {
            let same = |(_, other): &(String, Figure)| {
                (other.operation, &other.device, &other.case)
                    == (figure.operation, &figure.device, &figure.case)
            };
            lab.figures.iter().any(same)
        };
        let mut peer: Option<Peer> = None;
        for pass in [Pass::Forward, Pass::Both] {
            for (case, dtype) in Attention::measured(self.grid(cpu)) {
                let figure = figure::<Attention>("torch", cpu, &case, dtype, pass);
                if !ours(self, &figure) {
                    continue;
                }
                if peer.is_none() {
                    peer = Peer::start();
                }
                let Some(peer) = &mut peer else { return };
                let both = pass == Pass::Both;
                if peer.run(&case, dtype, both).is_nan() {
                    continue;
                }
                self.bench(figure, || {
                    move |calls| {
                        let seconds: f64 = (0..calls).map(|_| peer.run(&case, dtype, both)).sum();
                        Duration::try_from_secs_f64(seconds).expect("it answered before")
                    }
                });
            }
        }
    }

    /// One case, if the filter lets it through; `prepare` gives what times a number of calls.
    fn bench<T: FnMut(u64) -> Duration>(&mut self, figure: Figure, prepare: impl FnOnce() -> T) {
        let function = format!("{}.{}", figure.implementation, slug(&figure.device));
        let name = format!("{}/{function}/{}", figure.operation, figure.case);
        let before = median(&folder(), &name, &self.baseline);
        let mut group = self.criterion.benchmark_group(figure.operation);
        group.sampling_mode(SamplingMode::Flat);
        let (mut prepare, mut timed, mut ran) = (Some(prepare), None, false);
        group.bench_function(BenchmarkId::new(function, &figure.case), |bencher| {
            ran = true;
            let timed = timed.get_or_insert_with(|| prepare.take().expect("prepared once")());
            bencher.iter_custom(timed);
        });
        group.finish();
        if ran {
            self.figures.push((name, Figure { before, ..figure }));
        }
    }

    fn report(self, start: SystemTime) -> Result<(), Box<dyn Error>> {
        let criterion = folder();
        let figures: Vec<Figure> = self
            .figures
            .into_iter()
            .filter_map(|(name, figure)| {
                let seconds = measured_since(&criterion, &name, start)?;
                Some(Figure { seconds, ..figure })
            })
            .collect();
        if figures.is_empty() {
            return Ok(());
        }
        let mut devices: Vec<Measured> = Vec::new();
        for device in available() {
            let mut types: Vec<DType> = Vec::new();
            for figure in figures.iter().filter(|figure| figure.device == device.name) {
                if !types.contains(&figure.dtype) {
                    types.push(figure.dtype);
                }
            }
            if !types.is_empty() {
                devices.push((device.name.clone(), Roofs::measure(&device.device, &types)));
            }
        }
        println!("{}", report::text(&figures, &devices, &self.baseline));
        let threads = rayon::current_num_threads();
        let title = format!("Kernels, {threads} CPU threads");
        let page = criterion.with_file_name("lab").join("report.html");
        std::fs::create_dir_all(criterion.with_file_name("lab"))?;
        std::fs::write(&page, report::page(&title, &figures, &devices, &self.baseline))?;
        println!("report: {}", page.display());
        Ok(())
    }
}

/// The unfinished figure of a case.
fn figure<O: Operation>(
    implementation: &str,
    device: &Available,
    case: &O,
    dtype: DType,
    pass: Pass,
) -> Figure {
    let kind = format!("{dtype:?}").to_lowercase();
    Figure {
        operation: O::NAME,
        implementation: implementation.to_owned(),
        device: device.name.clone(),
        case: format!("{}_{kind}_{}", case.label(), pass.name()),
        dtype,
        work: case.work(pass, dtype),
        seconds: f64::NAN,
        before: None,
    }
}

/// Times calls of an implementation: all are given to the device, which has finished when the clock stops.
fn timed<O: Operation + 'static>(
    case: O,
    pass: Pass,
    functions: O::Functions,
    dtype: DType,
    device: &Device,
) -> impl FnMut(u64) -> Duration + use<O> {
    let operands: Vec<Tensor<2>> =
        (1..).zip(case.operands()).map(|(seed, operand)| operand.draw(seed).on(device, dtype)).collect();
    let mut run = case.prepare(pass, functions, operands);
    let device = device.clone();
    move |calls| {
        let start = Instant::now();
        (0..calls).for_each(|_| run());
        device.sync().expect("the device finishes what it was given");
        start.elapsed()
    }
}

/// Scores of whole rows, `[heads, seq, seq]`, take seconds beyond rows of this length.
fn is_too_slow(implementation: &str, label: &str) -> bool {
    implementation == "dot_product" && !label.ends_with("1x1024") && !label.ends_with("256")
}

/// Lower case letters and digits, words joined by `-`.
fn slug(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_lowercase()
}
