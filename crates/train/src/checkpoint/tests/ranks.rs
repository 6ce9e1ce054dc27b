//! One checkpoint of several ranks.

use super::*;
use crate::collective::{Collective, CollectiveError, Group, Mesh, Operation, Pending, Reduce, Solo};
use crate::optim::Optimizer;
use burn::tensor::{Device, Tensor};
use mt_config::{Config, LoadArgs};
use mt_model::tree::{Layout, Tree};
use mt_model::{Params, init};
use proptest::prelude::*;

/// Writes a file of its own.
fn part(rank: usize) -> Write {
    Box::new(move |path, manifest| manifest.write_file(path, &format!("file{rank}"), &[rank as u8; 3000]))
}

fn savers(path: &Path, count: usize) -> Vec<Saver> {
    let saver = |rank| Saver::new(CheckpointFolder::open(path).unwrap(), Some(2), true).of_rank(rank, count);
    (0..count).map(saver).collect()
}

#[test]
fn the_first_rank_commits_what_all_have_written() {
    let temp = tempfile::tempdir().unwrap();
    let mut savers = savers(temp.path(), 3);
    for step in 0..4 {
        savers[0].prepare(step).unwrap();
        for (rank, saver) in savers.iter_mut().enumerate() {
            saver.save(step, part(rank)).unwrap();
        }
    }
    savers.iter_mut().for_each(|saver| saver.finish().unwrap());
    let folder = savers[0].folder();
    assert_eq!(folder.steps().unwrap(), [2, 3]);
    let manifest = Manifest::read(&folder.checkpoint(3)).unwrap();
    manifest.verify(&folder.checkpoint(3)).unwrap();
    assert_eq!(manifest.files.keys().collect::<Vec<_>>(), ["file0", "file1", "file2"]);
    // Nothing else is left: no words, no unfinished folder.
    assert_eq!(std::fs::read_dir(folder.checkpoint(3)).unwrap().count(), 4);
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 2);
}

#[test]
fn there_is_no_checkpoint_until_the_last_part_is_there() {
    let temp = tempfile::tempdir().unwrap();
    let mut savers = savers(temp.path(), 3);
    savers[0].prepare(1).unwrap();
    savers[0].save(1, part(0)).unwrap();
    savers[2].save(1, part(2)).unwrap();
    savers[2].finish().unwrap();
    savers[0].poll().unwrap();
    assert_eq!(savers[0].folder().steps().unwrap(), [0; 0]);
    savers[1].save(1, part(1)).unwrap();
    savers[0].finish().unwrap();
    assert_eq!(savers[0].folder().steps().unwrap(), [1]);
}

#[test]
fn a_failed_part_is_named_and_commits_nothing() {
    let temp = tempfile::tempdir().unwrap();
    let mut savers = savers(temp.path(), 2);
    savers[0].prepare(5).unwrap();
    savers[0].save(5, part(0)).unwrap();
    let full = |path: &Path, _: &mut Manifest| {
        let source = std::io::ErrorKind::StorageFull.into();
        Err(CheckpointError::Io { action: "write", path: path.to_path_buf(), source })
    };
    savers[1].save(5, Box::new(full)).unwrap();
    assert_eq!(savers[1].finish().unwrap_err().io_kind(), Some(std::io::ErrorKind::StorageFull));
    let error = savers[0].finish().unwrap_err().to_string();
    assert!(
        error.starts_with("the part of rank 1 of the checkpoint of step 5 failed: can't write"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
}

#[test]
fn a_rank_that_is_gone_is_not_waited_for_for_ever() {
    let temp = tempfile::tempdir().unwrap();
    let mut first = savers(temp.path(), 2).swap_remove(0);
    first.prepare(5).unwrap();
    first.save(5, part(0)).unwrap();
    drop(first);
    assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0);
}

/// A rank of a data-parallel run: no tensor is ever sent.
struct Copy(Mesh);

impl Collective for Copy {
    fn mesh(&self) -> Mesh {
        self.0
    }
    fn start(&self, _: Group, _: Operation, _: Vec<Tensor<1>>) -> Result<Pending, CollectiveError> {
        unreachable!("every rank has all")
    }
    fn reduce(&self, _: Reduce, _: &mut [f64]) -> Result<(), CollectiveError> {
        Ok(())
    }
    fn from_first(&self, bytes: Vec<u8>) -> Result<Vec<u8>, CollectiveError> {
        Ok(bytes)
    }
    fn bytes_moved(&self) -> u64 {
        0
    }
}

fn config() -> Config {
    let keys = [
        ("base_emb_dim", "8"),
        ("base_mlp_dim", "12"),
        ("base_num_query_heads", "4"),
        ("base_num_kv_heads", "2"),
        ("head_dim", "2"),
        ("base_num_decoder_layers", "3"),
        ("vocab_size", "30"),
    ];
    let overrides = keys.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    mt_config::load(&LoadArgs { overrides, ..Default::default() }).unwrap()
}

/// Saves the fresh model as the ranks of `meshes` do.
fn save(config: &Config, params: &Params, layout: Layout, path: &Path, meshes: &[Mesh]) {
    let optimizer = Optimizer::new(config, params, mt_model::Shard::WHOLE).unwrap();
    let tree = Tree::with_layout(&config.model(), layout);
    let mut savers = savers(path, meshes.len());
    if meshes.len() > 1 {
        savers[0].prepare(0).unwrap();
    }
    for (&mesh, saver) in meshes.iter().zip(&mut savers) {
        let format = Format { layout, max_file_bytes: u64::MAX };
        let solo = meshes.len() == 1;
        let ranks: &dyn Collective = if solo { &Solo } else { &Copy(mesh) };
        let snapshot =
            Snapshot::take(params, &optimizer, &tree, format, some_state(0), String::new(), ranks).unwrap();
        saver.save(0, snapshot.into_write()).unwrap();
    }
    savers.iter_mut().for_each(|saver| saver.finish().unwrap());
}

#[test]
fn ranks_write_equal_shares_of_the_same_arrays() {
    let config = config();
    let params = init::init(&config.model(), &Device::flex());
    let layout = Layout { scan_layers: true, param_scan_axis: 1 };
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    save(&config, &params, layout, folders[0].path(), &[Mesh::SOLO]);
    let meshes = [0, 1, 2].map(|rank| Mesh { rank, data: 3, fsdp: 1 });
    save(&config, &params, layout, folders[1].path(), &meshes);

    let [one, three] = [0, 1].map(|i| Checkpoint::open(&folders[i].path().join("0")).unwrap());
    for (one, three) in [(one.params(), three.params()), (one.optimizer(), three.optimizer())]
        .map(|(a, b)| (a.unwrap(), b.unwrap()))
    {
        assert_eq!(one.names().collect::<Vec<_>>(), three.names().collect::<Vec<_>>());
        for name in one.names() {
            assert_eq!(one.read(name).unwrap(), three.read(name).unwrap(), "{name}");
            assert_eq!(one.metadata("param_scan_axis"), three.metadata("param_scan_axis"));
        }
    }
    let files = Manifest::read(&folders[1].path().join("0")).unwrap().files;
    let sizes = files.iter().filter(|(name, _)| name.ends_with(".safetensors")).map(|(_, sum)| sum.bytes);
    assert!(sizes.clone().count() >= 3 && sizes.clone().max() < Some(sizes.sum::<u64>() / 2), "{files:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn a_rank_reads_its_shards(scan_layers: bool, param_scan_axis in 0usize..2, fsdp in 1usize..6) {
        let config = config();
        let params = init::init(&config.model(), &Device::flex());
        let temp = tempfile::tempdir().unwrap();
        save(&config, &params, Layout { scan_layers, param_scan_axis }, temp.path(), &[Mesh::SOLO]);
        let checkpoint = Checkpoint::open(&temp.path().join("0")).unwrap();
        for rank in 0..fsdp {
            let mesh = Mesh { rank, data: 1, fsdp };
            let len = |tensor: &Tensor<2>| tensor.dims().iter().product::<usize>();
            let mut shards = params.map(|whole| match fsdp {
                1 => whole.zeros_like(),
                _ => Tensor::zeros([1, mesh.chunk(len(whole))], &Device::flex()),
            });
            load_params(&checkpoint.params().unwrap(), &config.model(), &mut shards, mesh).unwrap();
            for ((path, whole), (_, shard)) in params.leaves().into_iter().zip(shards.leaves()) {
                let whole: Vec<f32> = whole.to_data().try_to_vec().unwrap();
                let mut expected = whole[mesh.range(whole.len())].to_vec();
                expected.resize(len(shard), 0.0);
                prop_assert_eq!(shard.to_data().try_to_vec::<f32>().unwrap(), expected, "{}", path);
            }
        }
    }
}

#[test]
fn what_counts_is_the_rows_of_a_step_over_all_ranks() {
    let earlier =
        Identity::default().with("per_device_batch_size", 6.0).with("gradient_accumulation_steps", 2);
    let now = |rows: usize| Identity::default().with(GLOBAL_BATCH_SIZE, rows);
    now(12).check(&earlier, Path::new("c")).unwrap();
    now(12).check(&now(12), Path::new("c")).unwrap();
    let error = now(8).check(&earlier, Path::new("c")).unwrap_err().to_string();
    assert!(error.contains(" * ranks is 8 now, 12 in the checkpoint"), "{error}");
}
