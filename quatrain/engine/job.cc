// SPDX-License-Identifier: Apache-2.0
#include "quatrain/engine/job.h"

namespace quatrain {
namespace {

BuildOptions build_options(const RankJobOptions& options, const Pipeline& pipeline,
                           const Mesh& mesh, RankGroups& groups) {
  BuildOptions build = options.build;
  build.stages = stages_of_rank(stage_layers(options.spec.layers, options.plan.stage_begin),
                                pipeline.rank_of_stage(), pipeline.rank());
  build.tp = groups.tensor.get();
  build.cp = groups.context.get();
  build.context = context_split(options.plan, mesh.rank());
  if (groups.experts) {
    build.expert_exchange = groups.experts->exchange.get();
    build.experts = *tensor_split(options.plan, mesh.rank()).experts;
    build.ep_chunks = options.plan.ep_chunks;
  }
  build.tensor = {.sequence_parallel = options.plan.sequence_parallel,
                  .gather_again = options.plan.gather_again,
                  .overlap_chunks = options.plan.overlap_chunks};
  return build;
}

}  // namespace

RankModel::RankModel(const RankJobOptions& options, Communicator& world, bool with_grads)
    : plan(options.plan),
      mesh(plan.degrees, plan.axis_order, world.rank()),
      groups(make_rank_groups(world, mesh, options.spec.experts.has_value())),
      pipeline(*groups.pipe, options.schedule.rank_of_stage.front()),
      model(options.spec, build_options(options, pipeline, mesh, groups)),
      units(model, groups, plan.zero_stage) {
  units.allocate(with_grads);
  if (options.fill) {
    options.fill(model, units, world);
  } else {
    units.initialise(options.init_seed);
  }
}

// The optimizer's masters are copies of the values, so these come first.
RankJob::RankJob(const RankJobOptions& options, DataLoader& data, Communicator& world)
    : RankModel(options, world, true),
      optimizer(make_optimizer(options.optimizer, units.shards())),
      executor({model, units, pipeline, *optimizer, data, world}, options.executor),
      schedule(options.schedule) {
  optimizer->allocate();
}

StepReport RankJob::step(std::int64_t number, double lr_factor) {
  (void)run(number, lr_factor);
  executor.settle();
  return executor.settled();
}

}  // namespace quatrain
