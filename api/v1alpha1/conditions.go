// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// Condition types of an AgentTask, as kstatus reads them. Each is set from the
// first reconcile on and carries observedGeneration.
//
//	type         good value  meaning when True
//	Ready        True        the plan is completed
//	Succeeded    True        the plan is completed; False: it ended otherwise; Unknown: it has not ended
//	Reconciling  False       the task goes on by itself
//	Stalled      False       the task does not go on by itself; a person must act
//	Suspended    False       spec.suspend holds the task
//	OutcomeUnknown False     an effect may have happened, and no outcome tells; it stays
//	                         True on a task that ended so
const (
	ConditionReady          = "Ready"
	ConditionSucceeded      = "Succeeded"
	ConditionReconciling    = "Reconciling"
	ConditionStalled        = "Stalled"
	ConditionSuspended      = "Suspended"
	ConditionOutcomeUnknown = "OutcomeUnknown"
)

// ConditionApplied is the condition of an AgentDecision.
const ConditionApplied = "Applied"

// Reasons of an AgentDecision's condition Applied.
const (
	// ReasonApplied: the task's status holds the decision.
	ReasonApplied = "Applied"
	// ReasonAlreadyDecided: another decision on the same attempt was applied.
	ReasonAlreadyDecided = "AlreadyDecided"
	// ReasonOtherTask: there is no task of that name and UID.
	ReasonOtherTask = "OtherTask"
	// ReasonOtherAction: the task's step, attempt or action hash is another.
	ReasonOtherAction = "OtherAction"
	// ReasonNothingToDecide: the step's outcome is not unknown.
	ReasonNothingToDecide = "NothingToDecide"
	// ReasonChanged: the decision was changed after its creation.
	ReasonChanged = "Changed"
	// ReasonBadOutput: the output that is given cannot be one.
	ReasonBadOutput = "BadOutput"
)

// Reasons of a task's conditions.
const (
	// ReasonRunning: a step runs.
	ReasonRunning = "StepRunning"
	// ReasonRetrying: a step waits for its next attempt.
	ReasonRetrying = "StepRetrying"
	// ReasonStopping: a step is being stopped.
	ReasonStopping = "StepStopping"
	// ReasonCompleted: every step succeeded.
	ReasonCompleted = "Completed"
	// ReasonStepFailed: a step failed for good.
	ReasonStepFailed = "StepFailed"
	// ReasonCancelled: spec.cancel ended it.
	ReasonCancelled = "Cancelled"
	// ReasonDeadlineExceeded: activeDeadlineSeconds passed.
	ReasonDeadlineExceeded = "DeadlineExceeded"
	// ReasonSuspended: spec.suspend is true.
	ReasonSuspended = "Suspended"
	// ReasonNotSuspended: spec.suspend is not true.
	ReasonNotSuspended = "NotSuspended"
	// ReasonProgressing: the task goes on by itself.
	ReasonProgressing = "Progressing"
	// ReasonNotStalled: nobody needs to act for the task to go on.
	ReasonNotStalled = "NotStalled"
	// ReasonFinished: the task has ended.
	ReasonFinished = "Finished"
	// ReasonPlanChanged: a step that has started was changed, removed or moved.
	ReasonPlanChanged = "PlanChanged"
	// ReasonInvalidPlan: an expression of the plan is wrong or refers to a step that is
	// not before it; found before anything runs.
	ReasonInvalidPlan = "InvalidPlan"
	// ReasonNameConflict: an object of another owner has the name of the step's Job or pod.
	ReasonNameConflict = "NameConflict"
	// ReasonOutcomeUnknown: an attempt may have taken effect and left no outcome.
	ReasonOutcomeUnknown = "OutcomeUnknown"
	// ReasonOutcomesKnown: no effect's outcome is unknown.
	ReasonOutcomesKnown = "OutcomesKnown"
	// ReasonChecking: a step's check runs.
	ReasonChecking = "StepChecking"
	// ReasonVerifying: a step is being tested by spec.verify.
	ReasonVerifying = "StepVerifying"
	// ReasonManagedByUnsupported: the API server drops spec.managedBy of a Job.
	ReasonManagedByUnsupported = "ManagedByUnsupported"
)

// Reasons of an attempt, in a step's record. The first group is the program's own
// word, the second the infrastructure's, the third the operator's.
const (
	// ReasonExitCode: the program ended with another exit code than 0 and 75.
	ReasonExitCode = "ExitCode"
	// ReasonRetryRequested: the program asked for another attempt (exit code 75).
	ReasonRetryRequested = "RetryRequested"
	// ReasonTimeout: the program ran longer than the step's timeout.
	ReasonTimeout = "Timeout"
	// ReasonOutOfMemory: the kernel killed the program for its memory limit.
	ReasonOutOfMemory = "OutOfMemory"
	// ReasonOutputInvalid: what the program left as output is not one JSON document.
	ReasonOutputInvalid = "OutputInvalid"
	// ReasonOutputMissing: run.output is Stdout and the program printed nothing.
	ReasonOutputMissing = "OutputMissing"
	// ReasonOutputTooLarge: the output is larger than what can be kept.
	ReasonOutputTooLarge = "OutputTooLarge"
	// ReasonCommandNotFound: the image has no such program, or it may not be run.
	ReasonCommandNotFound = "CommandNotFound"
	// ReasonHTTPStatus: the server answered with a status that is no success.
	ReasonHTTPStatus = "HTTPStatus"
	// ReasonKeyReused: the server has seen the idempotency key with another payload (422).
	ReasonKeyReused = "KeyReused"
	// ReasonConnection: the server could not be reached, or the connection broke.
	ReasonConnection = "ConnectionFailed"
	// ReasonStartedTwice: the container was started a second time; the program was not.
	ReasonStartedTwice = "StartedTwice"

	// ReasonEvicted: the pod was evicted or preempted.
	ReasonEvicted = "Evicted"
	// ReasonNodeLost: the pod's node went away or stopped answering.
	ReasonNodeLost = "NodeLost"
	// ReasonPodLost: the pod was deleted before its outcome was recorded.
	ReasonPodLost = "PodLost"
	// ReasonJobDeleted: the Job was deleted before its outcome was recorded.
	ReasonJobDeleted = "JobDeleted"
	// ReasonPodRejected: the node refused the pod.
	ReasonPodRejected = "PodRejected"
	// ReasonKilled: the program was killed from outside before it could report.
	ReasonKilled = "Killed"
	// ReasonImageUnavailable: the image cannot be pulled.
	ReasonImageUnavailable = "ImageUnavailable"
	// ReasonUnschedulable: no node takes the pod.
	ReasonUnschedulable = "Unschedulable"
	// ReasonStartTimeout: the program did not start within startTimeout.
	ReasonStartTimeout = "StartTimeout"
	// ReasonContainerConfig: the container cannot be made, for example because a
	// Secret it names does not exist.
	ReasonContainerConfig = "ContainerConfigError"
	// ReasonInitFailed: an init container of the pod failed.
	ReasonInitFailed = "InitFailed"
	// ReasonOutputLost: a large output could not be read back whole from the pod's log.
	ReasonOutputLost = "OutputLost"
	// ReasonResultInvalid: the pod ended without a result the operator can read.
	ReasonResultInvalid = "ResultInvalid"

	// ReasonRefused: the API server refused the step's Job or pod (quota, policy,
	// webhook, rights). It is tried again and costs no attempt.
	ReasonRefused = "Refused"
	// ReasonUnavailable: what the step needs (a pod's log, a stored output, a webhook)
	// cannot be reached just now. It is tried again and costs no attempt.
	ReasonUnavailable = "Unavailable"
	// ReasonJobSuspended: somebody else (a queue) holds the Job by spec.suspend.
	ReasonJobSuspended = "JobSuspended"
	// ReasonInputInvalid: an expression in the step's input cannot be evaluated.
	ReasonInputInvalid = "InputInvalid"
	// ReasonInputTooLarge: the rendered input is larger than 128 KiB, or reads more than
	// 2 MiB of outputs that ConfigMaps keep.
	ReasonInputTooLarge = "InputTooLarge"
	// ReasonKeyInvalid: idempotencyKey cannot be evaluated, or is none.
	ReasonKeyInvalid = "KeyInvalid"
	// ReasonReused: a step of the run with the same idempotency key had succeeded; its
	// output was taken and nothing was run.
	ReasonReused = "Reused"
	// ReasonCheckedDone: the step's check said that the effect has happened.
	ReasonCheckedDone = "CheckedDone"
	// ReasonCheckFailed: the step's check failed for good.
	ReasonCheckFailed = "CheckFailed"
	// ReasonDecided: an AgentDecision settled it.
	ReasonDecided = "Decided"
	// ReasonNotIdempotent: run a second time with the same key, the step changed the world
	// or its output again.
	ReasonNotIdempotent = "NotIdempotent"
	// ReasonVerifyFailed: the test by spec.verify could not be made.
	ReasonVerifyFailed = "VerifyFailed"
)

// Reasons of events that are not a condition's or an attempt's reason.
const (
	EventStepStarted   = "StepStarted"
	EventStepSucceeded = "StepSucceeded"
	EventStepRetrying  = "StepRetrying"
	EventStepFailed    = "StepFailed"
	EventStepCancelled = "StepCancelled"
	EventStepWaiting   = "StepWaiting"
	EventStepUnknown   = "StepUnknown"
	EventStepReused    = "StepReused"
	EventStepDecided   = "StepDecided"
	EventStepVerifying = "StepVerifying"
	// EventPoliciesMissing: the admission policies that guard the fence are not installed.
	EventPoliciesMissing = "PoliciesMissing"
	// EventDecisionRefused: an AgentDecision was not applied.
	EventDecisionRefused = "DecisionRefused"
	EventTaskSucceeded   = "TaskSucceeded"
	EventTaskFailed      = "TaskFailed"
	EventTaskCancelled   = "TaskCancelled"
	EventTaskStalled     = "TaskStalled"
)
