"""Training arguments that rftui takes over or refuses. Shown by no form; what becomes of each is told here."""

from __future__ import annotations

MANAGED = {
    "output_dir": "checkpoints lie in the experiment's directory, under runs/<id>",
    "run_name": "runs are named after their knobs",
    "report_to": "metrics go to rftui's own store and from there to MLflow",
    "project": "metrics go to rftui's own store and from there to MLflow",
    "disable_tqdm": "the screen shows the progress",
    "save_steps": "checkpoints follow the time they cost; save_strategy='chunk' writes one at every chunk end",
    "save_total_limit": "two committed checkpoints are kept",
    "save_only_model": "a checkpoint must hold all that a resume needs",
    "save_on_each_node": "a run trains on one device",
    "load_best_model_at_end": "final/ holds the last weights; clone the run from a better moment instead",
    "resume_from_checkpoint": "rftui resumes runs by itself",
    "do_train": "a run trains",
    "do_eval": "an eval set is evaluated at every chunk end, or as eval_strategy says",
    "do_predict": "a run trains",
    "hub_token": "nothing is pushed to the hub",
    "hub_model_id": "nothing is pushed to the hub",
    "hub_private_repo": "nothing is pushed to the hub",
    "hub_strategy": "nothing is pushed to the hub",
    "hub_always_push": "nothing is pushed to the hub",
    "hub_revision": "nothing is pushed to the hub",
    "trackio_space_id": "metrics go to rftui's own store and from there to MLflow",
    "trackio_bucket_id": "metrics go to rftui's own store and from there to MLflow",
    "trackio_static_space_id": "metrics go to rftui's own store and from there to MLflow",
    "use_cpu": "--devices says where runs train",
    "local_rank": "a run trains on one device",
    "model_init_kwargs": "give model_kwargs to RFModelConfig",
    "skip_memory_metrics": "the devices' memory is shown all the time",
    "log_completions_hub_repo": "nothing is pushed to the hub",
}
"""Name -> what rftui does instead; a config may hold it, and a notice tells where that changes something."""

REFUSED = {
    "torch_compile": "runs change places on a device too often for compiled graphs",
    "torch_compile_backend": "runs change places on a device too often for compiled graphs",
    "torch_compile_mode": "runs change places on a device too often for compiled graphs",
    "auto_find_batch_size": "the batch size must be known before the run starts",
    "push_to_hub": "push final/ by yourself once the run is done",
    "deepspeed": "a run trains on one device",
    "fsdp": "a run trains on one device",
    "fsdp_config": "a run trains on one device",
    "parallelism_config": "a run trains on one device",
    "enable_jit_checkpoint": "it wants signals of the main thread; rftui checkpoints on SIGTERM by itself",
    "use_vllm": "vLLM would need a device of its own",
    "sync_ref_model": "the moved reference model would not survive a stop and a resume",
}
"""Name -> why a config that switches it on cannot train here."""

OWN = {"early_stopping_patience", "early_stopping_threshold"}
"""Arguments that TRL does not know and rftui adds."""
