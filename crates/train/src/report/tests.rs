use super::*;
use crate::profile::Share;
use std::time::Duration;

#[test]
fn the_page_holds_everything_and_needs_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let metrics = temp.path().join("metrics.jsonl");
    let lines: String = (0..50)
        .map(|step| {
            let loss = if step == 7 { "null".to_owned() } else { (9.0 - 0.1 * f64::from(step)).to_string() };
            format!(
                r#"{{"learning/loss":{loss},"perf/step_time_seconds":0.1,"step":{step}.0,"run_name":"r"}}"#
            ) + "\n"
        })
        .collect();
    std::fs::write(&metrics, lines + r#"{"torn"#).unwrap();
    let breakdown = Breakdown {
        steps: 2,
        total: Duration::from_secs(2),
        shares: vec![
            Share { name: "matmul", time: Duration::from_millis(1500), flops: 1 },
            Share { name: "optimizer", time: Duration::from_millis(500), flops: 0 },
        ],
    };
    let path = temp.path().join("report.html");
    write(&path, "run <b>&", &metrics, &[("steps", "50".to_owned())], Some(&breakdown)).unwrap();
    let page = std::fs::read_to_string(path).unwrap();
    for part in
        ["run &lt;b&gt;&amp;", "<th>steps</th><td>50</td>", "matmul 75.0 %", "<figcaption>Loss", "Step time"]
    {
        assert!(page.contains(part), "{part}");
    }
    // Nothing without figures, and nothing from elsewhere.
    assert!(!page.contains("Learning rate") && !page.contains("NaN"));
    assert!(!page.contains("http") && !page.contains("<script"));
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert_eq!(page.matches("<polyline").count(), 2);
}

#[test]
fn a_missing_file_is_named() {
    let error = write(Path::new("out.html"), "t", Path::new("missing.jsonl"), &[], None).unwrap_err();
    assert!(error.to_string().starts_with("can't read `missing.jsonl`"), "{error}");
}
