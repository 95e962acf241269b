#include "train/config_synonyms.h"

#include <algorithm>
#include <cctype>
#include <string>

#include "base/nearest.h"

namespace meshtrain {
namespace {

using Synonyms = std::vector<ConfigSynonym>;

void add_model(Synonyms& table) {
  table.push_back({{"n_layer", "n_layers", "num_layers", "num_hidden_layers", "nlayers", "num_blocks",
                    "n_blocks", "depth", "layer", "blocks"},
                   "model.layers"});
  table.push_back({{"n_head", "n_heads", "num_heads", "num_attention_heads", "nheads", "attention_heads",
                    "num_query_heads", "head"},
                   "model.heads"});
  table.push_back({{"num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "num_query_groups",
                    "n_query_groups", "key_value_heads", "kv_head"},
                   "model.kv_heads"});
  table.push_back({{"n_embd", "n_embed", "hidden_size", "hidden_dim", "d_model", "dim", "model_dim",
                    "embed_dim", "embedding_dim", "embedding_size", "width", "channels"},
                   "model.hidden"});
  table.push_back({{"intermediate_size", "ffn_hidden_size", "ffn_dim", "ffn_size", "d_ff", "dim_ff", "n_inner",
                    "mlp_dim", "mlp_hidden", "mlp_hidden_size", "ffn_hidden_dim", "feed_forward_dim"},
                   "model.ffn_hidden"});
  table.push_back(
      {{"vocab_size", "n_vocab", "padded_vocab_size", "vocabulary_size", "vocabulary"}, "model.vocab"});
  table.push_back({{"head_size", "d_head", "dim_head", "kv_channels", "d_kv", "head_width"}, "model.head_dim"});
  table.push_back({{"tie_word_embeddings", "tied_embeddings", "tie_weights", "weight_tying", "tied",
                    "tie_embedding", "share_embeddings_and_output_weights"},
                   "model.tie_embeddings"});
  table.push_back({{"untie_embeddings_and_output_weights"}, "set model.tie_embeddings = false instead"});
  table.push_back({{"rms_norm_eps", "rmsnorm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon",
                    "norm_epsilon", "ln_eps"},
                   "model.norm_eps"});
  table.push_back({{"rotary_base", "rope_base", "rotary_emb_base", "theta"}, "model.rope_theta"});
  table.push_back({{"rope_scaling", "use_scaled_rope"}, "model.rope_scaling_factor"});
  table.push_back(
      {{"initializer_range", "init_method_std", "init_stdev", "initialization_std"}, "model.init_std"});
  table.push_back({{"attention_bias", "add_qkv_bias", "attn_bias", "use_qkv_bias"}, "model.qkv_bias"});
  table.push_back({{"qk_layernorm", "use_qk_norm", "qk_normalization"}, "model.qk_norm"});
  table.push_back({{"model_type", "model.type", "architecture", "architectures"}, "model.arch"});
  table.push_back({{"model.name", "model_name", "model.size", "model_size", "model"},
                   "model.preset names a published shape, and model.arch a family"});
  table.push_back({{"init_from", "pretrained", "from_pretrained", "pretrained_model", "model_name_or_path",
                    "pretrained_model_name_or_path", "load_weights", "finetune_from", "model.path", "hf_model"},
                   "model.from"});
  table.push_back(
      {{"dropout", "attention_dropout", "attn_dropout", "hidden_dropout", "resid_dropout", "dropout_p",
        "resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout_prob", "embd_dropout", "p_dropout",
        "attention_probs_dropout_prob", "residual_dropout", "dropout_rate"},
       "dropout is not in this version"});
  table.push_back({{"activation", "activation_function", "hidden_act", "act_fn", "swiglu", "mlp_type"},
                   "the activation follows from model.arch"});
  table.push_back({{"num_experts", "n_experts", "num_local_experts", "num_experts_per_tok", "moe",
                    "top_k_experts", "moe_router_topk"},
                   "mixtures of experts are not in this version"});
  table.push_back(
      {{"sliding_window", "window_size", "attention_window"}, "sliding windows are not in this version"});
  table.push_back(
      {{"lora", "lora_r", "lora_rank", "lora_alpha", "peft", "freeze"}, "this version trains all weights"});
}

void add_data(Synonyms& table) {
  table.push_back({{"dataset",       "dataset_path", "dataset_name", "data_path",   "data_prefix",
                    "train_data",    "train_path",   "train_file",   "train_files", "train_data_path",
                    "train_bin",     "input_bin",    "corpus",       "data_dir",    "training_data",
                    "train_dataset", "data",         "data.path",    "data.file",   "data.files"},
                   "data.train"});
  table.push_back({{"val", "val_data", "valid_data", "validation", "validation_data", "val_file", "valid_file",
                    "validation_file", "val_path", "valid_path", "eval_data", "val_bin", "input_val_bin",
                    "eval_dataset", "eval_file", "validation_data_path", "data.eval", "data.test"},
                   "data.valid"});
  table.push_back({{"tokenizer_path", "tokenizer_model", "tokenizer_name", "tokenizer_type", "tokenizer_file",
                    "tokenizer_name_or_path", "vocab_file", "tokeniser"},
                   "data.tokenizer"});
  table.push_back(
      {{"block_size", "seq_length", "seqlen", "max_seq_len", "max_seq_length", "sequence_length",
        "sequence_len", "max_sequence_length", "n_ctx", "n_positions", "context_length", "context_size",
        "ctx_len", "max_position_embeddings", "max_length", "max_context_length", "context_window"},
       "data.seq_len is the length of a training sequence, and model.context the longest that the model "
       "takes"});
  table.push_back(
      {{"shuffle", "shuffle_data"}, "samples are always shuffled, in an order that train.seed gives"});
  table.push_back({{"dataloader_num_workers", "data_workers", "num_workers"},
                   "reading data needs no workers; machine.threads is for all work"});
}

void add_train(Synonyms& table) {
  table.push_back({{"max_iters",
                    "max_iter",
                    "max_steps",
                    "num_steps",
                    "n_steps",
                    "total_steps",
                    "train_steps",
                    "training_steps",
                    "num_train_steps",
                    "num_training_steps",
                    "max_train_steps",
                    "train_iters",
                    "num_iters",
                    "num_iterations",
                    "iterations",
                    "iters",
                    "n_iters",
                    "total_iters",
                    "max_updates",
                    "num_updates",
                    "step"},
                   "train.steps"});
  table.push_back(
      {{"epochs", "epoch", "num_epochs", "n_epochs", "max_epochs", "num_train_epochs", "train_epochs"},
       "train.steps counts steps; an epoch is (tokens of the data) / (train.global_batch x data.seq_len) of "
       "them"});
  table.push_back({{"max_tokens", "train_tokens", "total_tokens", "num_tokens"},
                   "a run is counted in steps: train.steps x train.global_batch x data.seq_len tokens"});
  table.push_back(
      {{"batch_size", "batch", "batchsize", "bs", "batch_size_per_gpu"},
       "train.global_batch counts the sequences of an optimizer step, and train.micro_batch those of a "
       "forward pass"});
  table.push_back({{"global_batch_size", "global_bs", "effective_batch_size", "train_batch_size", "gbs",
                    "global_train_batch_size"},
                   "train.global_batch"});
  table.push_back({{"total_batch_size", "tokens_per_batch", "batch_tokens", "global_batch_tokens"},
                   "the key is train.global_batch, which counts sequences of data.seq_len tokens"});
  table.push_back({{"micro_batch_size", "microbatch_size", "micro_bs", "microbatch", "mbs", "device_batch_size",
                    "per_device_train_batch_size", "per_device_batch_size", "per_gpu_batch_size",
                    "train_micro_batch_size_per_gpu", "local_batch_size", "per_gpu_train_batch_size"},
                   "train.micro_batch"});
  table.push_back({{"eval_batch_size", "per_device_eval_batch_size", "val_batch_size", "valid_batch_size"},
                   "evaluations take train.micro_batch sequences at a time"});
  table.push_back(
      {{"gradient_accumulation_steps", "gradient_accumulation", "grad_accum", "grad_accum_steps", "grad_acc",
        "grad_acc_steps", "accumulate_grad_batches", "accumulation_steps", "accum_steps", "num_micro_batches",
        "num_microbatches", "micro_steps", "gradient_accumulate_every"},
       "it follows from the batch: micro-steps = train.global_batch / (train.micro_batch x mesh.dp)"});
  table.push_back({{"random_seed", "rng_seed", "manual_seed", "data_seed"}, "train.seed"});
  table.push_back(
      {{"max_grad_norm", "clip_grad", "clip_grad_norm", "grad_clip_norm", "gradient_clipping", "gradient_clip",
        "gradient_clip_val", "grad_norm_clip", "grad_norm_clipping", "clip", "clipping", "max_norm"},
       "train.grad_clip"});
  table.push_back({{"eval_interval", "eval_steps", "eval_freq", "eval_iterval", "eval_frequency",
                    "val_interval", "val_every", "valid_every", "valid_interval", "val_check_interval",
                    "val_loss_every", "evaluate_every", "evaluation_steps", "test_interval"},
                   "train.eval_every"});
  table.push_back(
      {{"eval_batches", "eval_iters", "num_eval_batches", "val_steps", "limit_val_batches", "val_max_steps"},
       "train.eval_tokens says how many tokens an evaluation covers, whatever the batch"});
  table.push_back({{"loss_spike", "spike_threshold", "skip_threshold"}, "train.norm_spike"});
}

void add_optimizer(Synonyms& table) {
  table.push_back({{"learning_rate", "learningrate", "max_lr", "peak_lr", "base_lr", "lr_max",
                    "peak_learning_rate", "max_learning_rate", "init_lr"},
                   "optimizer.lr"});
  table.push_back(
      {{"min_learning_rate", "lr_min", "final_lr", "end_lr", "eta_min", "lr_end"}, "optimizer.min_lr"});
  table.push_back(
      {{"min_lr_ratio", "min_lr_rate", "lr_min_ratio", "learning_rate_decay_frac", "final_lr_fraction"},
       "optimizer.min_lr is the learning rate at the end, not a fraction"});
  table.push_back({{"beta1", "beta2", "beta_1", "beta_2", "adam_beta1", "adam_beta2", "adam_betas", "beta"},
                   "the key is optimizer.betas, which has both: [0.9, 0.95]"});
  table.push_back({{"epsilon", "adam_eps", "adam_epsilon", "opt_eps"}, "optimizer.eps"});
  table.push_back(
      {{"wd", "decay", "adam_wd", "l2", "adam_weight_decay", "l2_regularization"}, "optimizer.weight_decay"});
  table.push_back({{"optim", "optimizer", "optimizer_type", "optimizer_name", "optimizer.type",
                    "optimizer.optimizer", "opt"},
                   "optimizer.name"});
  table.push_back({{"warmup_steps", "warmup_iters", "lr_warmup_iters", "lr_warmup_steps", "num_warmup_steps",
                    "warm_up", "warmup_iterations", "warmup_updates"},
                   "optimizer.warmup"});
  table.push_back({{"warmup_ratio", "warmup_fraction", "lr_warmup_fraction", "warmup_tokens", "warmup_percent"},
                   "the key is optimizer.warmup, which counts steps"});
  table.push_back({{"lr_scheduler_type", "lr_scheduler", "lr_schedule", "lr_decay_style", "scheduler",
                    "scheduler_type", "decay_style", "decay_lr", "learning_rate_schedule", "lr_decay"},
                   "optimizer.schedule"});
  table.push_back({{"lr_decay_iters", "lr_decay_steps", "decay_steps"},
                   "the schedule ends with train.steps; optimizer.decay_fraction is the last part, for wsd"});
  table.push_back({{"decay_ratio", "cooldown", "cooldown_fraction", "lr_wsd_decay_iters", "wsd_decay"},
                   "optimizer.decay_fraction"});
}

void add_mesh(Synonyms& table) {
  table.push_back(
      {{"tensor_model_parallel_size", "tensor_parallel_size", "tensor_parallel_degree", "tensor_parallel",
        "tensor_parallelism", "tp_size", "tp_degree", "model_parallel_size", "tp_dim"},
       "mesh.tp"});
  table.push_back({{"pipeline_model_parallel_size", "pipeline_parallel_size", "pipeline_parallel_degree",
                    "pipeline_parallel", "pipeline_parallelism", "pp_size", "pp_degree", "pipeline_stages",
                    "num_stages", "pipeline"},
                   "mesh.pp"});
  table.push_back({{"data_parallel_size", "data_parallel_degree", "data_parallel", "data_parallelism",
                    "dp_size", "dp_degree", "data_parallel_replicate_degree", "ddp"},
                   "mesh.dp"});
  table.push_back({{"context_parallel_size", "context_parallel_degree", "context_parallel",
                    "context_parallelism", "cp_size", "cp_degree"},
                   "mesh.cp"});
  table.push_back({{"expert_model_parallel_size", "expert_parallel_size", "expert_parallel_degree",
                    "expert_parallel", "expert_parallelism", "ep_size", "ep_degree"},
                   "mesh.ep"});
  table.push_back({{"zero_stage", "zero_optimization", "zero_level", "zero_opt", "fsdp", "sharding_strategy",
                    "sharding_stage", "data_parallel_shard_degree", "use_distributed_optimizer", "mesh.stage",
                    "fully_shard"},
                   "mesh.zero"});
  table.push_back({{"virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage", "vpp",
                    "virtual_pipeline", "num_virtual_stages", "interleave", "model_chunks"},
                   "mesh.virtual_stages"});
  table.push_back({{"pipeline_schedule", "pipeline_parallel_schedule", "pp_schedule"}, "mesh.schedule"});
  table.push_back(
      {{"backend", "dist_backend", "distributed_backend", "comm_backend", "communicator"}, "mesh.engine"});
  table.push_back({{"timeout", "ddp_timeout", "distributed_timeout", "distributed_timeout_minutes",
                    "nccl_timeout", "comm_timeout"},
                   "the key is mesh.deadline, in seconds"});
  table.push_back(
      {{"bucket_size", "bucket_cap_mb", "ddp_bucket_size", "reduce_bucket_size"}, "mesh.bucket_mb"});
  table.push_back(
      {{"sp", "use_sp", "sequence_parallelism", "enable_sequence_parallel"}, "mesh.sequence_parallel"});
  table.push_back({{"overlap_grad_reduce", "overlap_param_gather", "overlap_comm"}, "mesh.overlap"});
  table.push_back({{"world_size", "num_ranks", "ranks", "nproc", "nprocs", "nproc_per_node", "num_nodes",
                    "nnodes", "n_ranks", "num_processes"},
                   "the number of ranks follows from [mesh], or is given by --ranks or a launcher"});
}

void add_rest(Synonyms& table) {
  table.push_back({{"dtype", "torch_dtype", "param_dtype", "compute_dtype", "fp16", "bf16", "fp32", "bfloat16",
                    "float16", "half", "mixed_precision", "precision", "amp", "use_bf16", "use_fp16",
                    "autocast", "precision.dtype", "data_type"},
                   "precision.compute"});
  table.push_back({{"fp8", "use_fp8", "fp4", "quantization", "load_in_8bit", "load_in_4bit"},
                   "precision.compute is fp32, bf16 or fp16 in this version"});
  table.push_back(
      {{"initial_loss_scale", "initial_scale_power", "init_scale", "loss_scaling"}, "precision.loss_scale"});
  table.push_back({{"grad_dtype", "reduce_dtype", "grad_reduce_dtype", "accumulate_allreduce_grads_in_fp32",
                    "gradient_dtype", "main_grads_dtype"},
                   "precision.gradients"});
  table.push_back(
      {{"activation_checkpointing", "gradient_checkpointing", "grad_checkpointing", "activation_checkpoint",
        "recompute", "recomputation", "recompute_granularity", "recompute_activations", "recompute_method",
        "enable_recompute", "remat", "rematerialization", "ac_mode", "checkpoint_activations"},
       "recompute.policy"});
  table.push_back(
      {{"deterministic", "deterministic_mode", "use_deterministic_algorithms", "reproducible"},
       "runs are deterministic; numerics.reduction = \"tree\" makes the bits independent of the mesh too"});
  table.push_back(
      {{"save_interval", "save_steps", "save_every", "save_freq", "save_frequency", "checkpoint_interval",
        "checkpoint_every", "checkpoint_freq", "checkpoint_steps", "ckpt_interval", "ckpt_every",
        "always_save_checkpoint", "checkpoint.interval", "checkpoint.steps"},
       "checkpoint.every"});
  table.push_back({{"save_total_limit", "keep_last", "keep_last_n", "keep_last_k", "max_to_keep",
                    "max_checkpoints", "keep_checkpoints", "num_checkpoints", "keep_latest_k"},
                   "checkpoint.keep"});
  table.push_back(
      {{"async_save", "async_checkpoint", "async_checkpointing", "async_mode"}, "checkpoint.async"});
  table.push_back({{"save_dir", "ckpt_dir", "checkpoint_dir", "checkpoint_folder", "checkpoint_path",
                    "ckpt_path", "save_path", "save", "checkpoint.path", "checkpoint.folder"},
                   "checkpoint.dir"});
  table.push_back({{"mtbf", "mean_time_between_failures"}, "checkpoint.mtbf_hours"});
  table.push_back({{"resume", "resume_from", "resume_from_checkpoint", "load_checkpoint", "init_checkpoint"},
                   "to resume is an option: `meshtrain train RUN --resume`"});
  table.push_back({{"out_dir", "output_dir", "outdir", "out", "output", "log_dir", "logging_dir", "run_dir",
                    "workdir", "work_dir", "run_name", "exp_dir", "dump_folder", "output_path", "output.path",
                    "output.folder", "results_dir"},
                   "output.dir"});
  table.push_back({{"log_interval", "logging_steps", "log_every", "log_freq", "log_every_n_steps", "wandb",
                    "wandb_log", "wandb_project", "report_to", "tensorboard", "use_wandb", "tensorboard_dir"},
                   "every step is a line of metrics.jsonl in output.dir"});
  table.push_back(
      {{"device", "devices", "device_type", "cuda", "use_cuda", "gpu", "gpus", "use_gpu", "num_gpus", "n_gpus",
        "ngpu", "accelerator", "no_cuda", "cuda_device", "use_cpu", "cpu"},
       "this version computes on CPUs: machine.threads says on how many cores, and --ranks in how many "
       "processes"});
  table.push_back({{"num_threads", "n_threads", "nthreads", "omp_num_threads", "cores", "num_cores", "thread"},
                   "machine.threads"});
  table.push_back({{"config", "config_file", "config_path", "config_name", "cfg"},
                   "the config is an argument without a name, as in `meshtrain train small.toml`"});
  table.push_back(
      {{"peak_flops", "gpu_peak_flops", "hardware_flops", "peak", "promised_flops"}, "machine.peak_tflops"});
}

Synonyms make_table() {
  Synonyms table;
  add_model(table);
  add_data(table);
  add_train(table);
  add_optimizer(table);
  add_mesh(table);
  add_rest(table);
  return table;
}

}  // namespace

std::span<const ConfigSynonym> config_synonyms() {
  static const Synonyms kTable = make_table();
  return kTable;
}

std::string_view config_advice(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    plain += c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const ConfigSynonym& synonym : config_synonyms()) {
    if (std::find(synonym.names.begin(), synonym.names.end(), plain) != synonym.names.end())
      return synonym.advice;
  }
  return "";
}

std::string_view nearest_config_advice(std::string_view name) {
  constexpr std::size_t kLongEnough = 6;  // short names are like too many words
  std::vector<std::string> names;
  for (const ConfigSynonym& synonym : config_synonyms()) {
    for (const std::string_view known : synonym.names) {
      if (known.size() >= kLongEnough) names.emplace_back(known);
    }
  }
  return name.size() < kLongEnough ? "" : config_advice(nearest(name, names));
}

}  // namespace meshtrain
