//! docs/config.md is the key table.

use std::path::Path;

use mt_config::{docs_markdown, help_keys};

use crate::support::assert_contains;

#[test]
fn the_page_is_fresh() {
    let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md"));
    let page = docs_markdown();
    if std::env::var_os("MT_UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("docs/");
        std::fs::write(path, &page).expect("docs/config.md");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    let update = "MT_UPDATE_DOCS=1 cargo test --release -p mt-config --test config docs";
    assert!(found == page, "docs/config.md is not what the key table says; run `{update}`");
}

#[test]
fn help_shows_rows_by_pattern() {
    assert_contains(
        &help_keys("remat_policy"),
        &["remat_policy: full", "Which activations", "minimal_with_context"],
    );
    assert_contains(&help_keys("SHARDY"), &["shardy: true", "Accepted, without effect"]);
    assert_contains(&help_keys("num_experts"), &["Only the default"]);
    assert_contains(&help_keys("lerning_rate"), &["did you mean `learning_rate`?"]);
    assert_contains(&help_keys("qqqqq"), &["no key matches"]);
    assert!(help_keys("").lines().count() > 900);
}
