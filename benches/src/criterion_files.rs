//! The figures that criterion leaves on disk, and the arguments that say which.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::Value;

/// Where criterion writes: `$CRITERION_HOME`, else the folder `criterion` of the target folder that this program lies in.
pub fn folder() -> PathBuf {
    if let Some(home) = std::env::var_os("CRITERION_HOME") {
        return home.into();
    }
    let program = std::env::current_exe().unwrap_or_default(); // target/release/deps/kernels-...
    program.ancestors().nth(3).unwrap_or(Path::new("target")).join("criterion")
}

/// The baseline that a run with these arguments is compared with: criterion's `base` holds the last run that named none.
pub fn baseline(arguments: &[String]) -> String {
    const NAMED: [&str; 5] = ["--baseline", "-b", "--baseline-lenient", "--save-baseline", "-s"];
    for (i, argument) in arguments.iter().enumerate() {
        let (key, value) = match argument.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (argument.as_str(), arguments.get(i + 1).map(String::as_str)),
        };
        if let (true, Some(value)) = (NAMED.contains(&key), value) {
            return value.to_owned();
        }
    }
    "base".to_owned()
}

/// Median seconds that `of` (`new`, or a baseline) holds for a case `group/function/parameter`.
pub fn median(criterion: &Path, case: &str, of: &str) -> Option<f64> {
    let text = fs::read_to_string(criterion.join(case).join(of).join("estimates.json")).ok()?;
    let estimates: Value = serde_json::from_str(&text).ok()?;
    Some(estimates["median"]["point_estimate"].as_f64()? / 1e9)
}

/// As [`median`] of `new`, if it was written since `start`: not in a run that only lists or tests.
pub fn measured_since(criterion: &Path, case: &str, start: SystemTime) -> Option<f64> {
    let file = criterion.join(case).join("new").join("estimates.json");
    let written = fs::metadata(file).and_then(|file| file.modified()).ok()?;
    // File systems may keep whole seconds.
    (written + std::time::Duration::from_secs(1) >= start).then(|| median(criterion, case, "new"))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn baselines_by_argument() {
        let of = |line: &str| baseline(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(of("--bench rms_norm"), "base");
        assert_eq!(of("--bench --save-baseline before rms_norm"), "before");
        assert_eq!(of("rms_norm --baseline=before"), "before");
        assert_eq!(of("-b main"), "main");
    }

    #[test]
    fn medians_are_read_and_old_ones_are_not_of_this_run() {
        let folder = std::env::temp_dir().join(format!("mt-train-criterion-{}", std::process::id()));
        let new = folder.join("glu/fused.cpu/4x4/new");
        fs::create_dir_all(&new).expect("a temporary folder");
        fs::write(new.join("estimates.json"), r#"{"median":{"point_estimate":2500000.0}}"#).expect("a file");
        let case = "glu/fused.cpu/4x4";
        assert_eq!(median(&folder, case, "new"), Some(2.5e-3));
        assert_eq!(median(&folder, case, "base"), None);
        assert_eq!(measured_since(&folder, case, SystemTime::now()), Some(2.5e-3));
        let later = SystemTime::now() + std::time::Duration::from_secs(60);
        assert_eq!(measured_since(&folder, case, later), None);
        fs::remove_dir_all(folder).expect("its removal");
    }
}
