//! How the layers' parameters are stacked in a file, as its metadata says or its tensors show.

use super::read::TensorFiles;
use mt_model::tree::Layout;
use std::collections::BTreeMap;

const SCAN_LAYERS: &str = "scan_layers";
const PARAM_SCAN_AXIS: &str = "param_scan_axis";

/// The layout as metadata of a safetensors file.
pub(crate) fn metadata(layout: Layout) -> BTreeMap<String, String> {
    BTreeMap::from([
        (SCAN_LAYERS.to_owned(), layout.scan_layers.to_string()),
        (PARAM_SCAN_AXIS.to_owned(), layout.param_scan_axis.to_string()),
    ])
}

/// The layout of files of parameters. Names tell whether layers are stacked; along which axis, metadata tells, or else the
/// shape of the norm scales, `[E, L]` or `[L, E]`. What neither tells is taken from `expected`.
pub(crate) fn of_files(files: &TensorFiles, num_layers: usize, expected: Layout) -> Layout {
    let mut layers = files.names().filter(|name| name.contains("decoder/layers/"));
    let Some(stacked) = layers.find(|name| name.ends_with("scale")) else {
        let single = files.names().any(|name| name.contains("decoder/layers_"));
        return if single { Layout { scan_layers: false, ..expected } } else { expected };
    };
    let by_metadata = files.metadata(PARAM_SCAN_AXIS).and_then(|axis| axis.parse().ok());
    let by_shape = || match files.info(stacked)?.shape[..] {
        [a, b] if a == num_layers && b != num_layers => Some(0),
        [a, b] if a != num_layers && b == num_layers => Some(1),
        _ => None,
    };
    let param_scan_axis = by_metadata.or_else(by_shape).unwrap_or(expected.param_scan_axis);
    Layout { scan_layers: true, param_scan_axis }
}

/// The layout in the words of its keys.
pub(crate) fn describe(layout: Layout) -> String {
    match layout.scan_layers {
        true => format!("scan_layers=true, param_scan_axis={}", layout.param_scan_axis),
        false => "scan_layers=false".to_owned(),
    }
}
