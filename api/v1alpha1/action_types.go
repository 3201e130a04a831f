// Copyright The AgentTask Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// OutputSource is where a program leaves its output.
// +kubebuilder:validation:Enum=File;Stdout
type OutputSource string

const (
	// OutputFile: the program writes JSON to /agenttask/output.json; a program that
	// writes no file has the output null.
	OutputFile OutputSource = "File"
	// OutputStdout: what the program prints on standard output is one JSON document.
	OutputStdout OutputSource = "Stdout"
)

// RunAction runs a program in a container. It is a subset of a container's fields;
// what is the same for all steps (volumes, service account, security context)
// stands in spec.podTemplate.
type RunAction struct {
	// image is the container image. It is not part of the idempotency key, so a
	// mended image is still the same action.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="!self.contains('${')",message="image must not hold an expression: a step's output can never choose what runs"
	Image string `json:"image"`

	// command is the program and its first arguments, run without a shell. It is
	// required, since the operator does not read the image's entrypoint. At most 64
	// entries. It is part of the idempotency key. ${...} is plain text here: a step's
	// output can never become a command line; give values in input. $(VAR) is
	// replaced from the environment, as in any container.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=32768
	Command []string `json:"command"`

	// args are further arguments, after command. At most 64 entries. They are part of
	// the idempotency key.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=32768
	Args []string `json:"args,omitempty"`

	// workingDir is the directory the program starts in. Default: the image's.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	WorkingDir string `json:"workingDir,omitempty"`

	// env sets environment variables, as in a container. Give secrets by
	// valueFrom.secretKeyRef. Names that begin with AGENTTASK_ are the operator's. It
	// is not part of the idempotency key. At most 64.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(e, !e.name.startsWith('AGENTTASK_'))",message="names that begin with AGENTTASK_ are set by the operator; choose another name"
	// +kubebuilder:validation:XValidation:rule="self.all(e, !has(e.value) || !e.value.startsWith('${'))",message="env values must not hold expressions (${...}); give the value in the step's input"
	Env []corev1.EnvVar `json:"env,omitempty"`

	// envFrom sets environment variables from whole ConfigMaps and Secrets, as in a
	// container. At most 16.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`

	// resources are the container's requests and limits.
	// +optional
	Resources *corev1.ResourceRequirements `json:"resources,omitempty"`

	// volumeMounts mount volumes of spec.podTemplate. /agenttask is the operator's.
	// At most 32.
	// +optional
	// +listType=map
	// +listMapKey=mountPath
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(m, m.mountPath != '/agenttask' && !m.mountPath.startsWith('/agenttask/'))",message="/agenttask is where the operator mounts the step's input and output; choose another mountPath"
	VolumeMounts []corev1.VolumeMount `json:"volumeMounts,omitempty"`

	// imagePullPolicy is Always, IfNotPresent or Never. Default: Kubernetes' own
	// (Always for the tag latest, else IfNotPresent).
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// output is where the program leaves its output. File (the default): JSON in
	// /agenttask/output.json. Stdout: standard output is one JSON document.
	// +optional
	Output OutputSource `json:"output,omitempty"`
}

// HTTPAction sends one HTTP request. It is never sent twice by one attempt: redirects are
// followed for GET and HEAD alone, and the client retries nothing. The step's retries are
// at steps[].retry.
//
// What an answer means: a code of successCodes is success. 408, 409 (a request with the
// same key is in flight), 425, 429 and 5xx are tried again, after Retry-After where the
// server gives one. 422 is final: the server has seen the key with another payload. Any
// other code is final. With effect Once an attempt is unknown where the request may have
// been taken up and no answer tells: a 5xx, or a 408 or 503 without Retry-After, a timeout,
// a broken connection.
//
// +kubebuilder:validation:XValidation:rule="!has(self.outputHeaders) || (has(self.output) && self.output == 'Response')",message="outputHeaders needs output: Response"
type HTTPAction struct {
	// method is the request's method.
	// +required
	// +kubebuilder:validation:Enum=GET;HEAD;POST;PUT;PATCH;DELETE
	Method string `json:"method"`

	// url is where the request goes: http or https. It may hold expressions; put values
	// into it with urlEncode. It is part of the idempotency key. At most 4096 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:XValidation:rule="self.startsWith('http://') || self.startsWith('https://')",message="url must begin with http:// or https://; what follows may hold expressions"
	URL string `json:"url"`

	// headers are the request's headers. They are not part of the idempotency key. At
	// most 32.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=32
	Headers []HTTPHeader `json:"headers,omitempty"`

	// body is the JSON that is sent, with Content-Type application/json unless headers
	// say otherwise, with any method but GET and HEAD. Strings may hold expressions, as in a step's input. It is part of the
	// idempotency key. Default: no body.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Body *apiextensionsv1.JSON `json:"body,omitempty"`

	// successCodes are the status codes that mean success. At most 16. Default: 200 to 299.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Minimum=200
	// +kubebuilder:validation:items:Maximum=599
	SuccessCodes []int32 `json:"successCodes,omitempty"`

	// tls says how the server is trusted. Default: by the authorities of the runner's
	// image.
	// +optional
	TLS *HTTPTLS `json:"tls,omitempty"`

	// timeout is how long the one request may take until its answer is read whole. More
	// than 0, at most 24h. Default: 30s.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+(\\\\.[0-9]+)?(ms|s|m|h))+$') && duration(self) > duration('0s') && duration(self) <= duration('24h')",message="timeout must be a duration such as 10s, 90s or 5m, more than 0s and at most 24h; leave it out for the default of 30s"
	Timeout *metav1.Duration `json:"timeout,omitempty"`

	// keyHeader is the header that carries the idempotency key. It is sent with every
	// method except GET and HEAD.
	// +optional
	KeyHeader *KeyHeader `json:"keyHeader,omitempty"`

	// output is what of the answer is the action's output. Body (the default): the body,
	// as JSON where its Content-Type says so, else as text, in base64 where it is not
	// UTF-8, and null where there is none. Response: {status, headers, body}.
	// +optional
	Output HTTPOutput `json:"output,omitempty"`

	// outputHeaders are the answer's headers that stand in the output, under their
	// lower-case names, with output Response. At most 16.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=256
	OutputHeaders []string `json:"outputHeaders,omitempty"`
}

// HTTPOutput is what of an answer is kept.
// +kubebuilder:validation:Enum=Body;Response
type HTTPOutput string

const (
	// HTTPOutputBody keeps the body alone.
	HTTPOutputBody HTTPOutput = "Body"
	// HTTPOutputResponse keeps {status, headers, body}.
	HTTPOutputResponse HTTPOutput = "Response"
)

// HTTPHeader is one header of a request.
//
// +kubebuilder:validation:XValidation:rule="has(self.value) != has(self.secretKeyRef)",message="a header needs a value or a secretKeyRef, and not both"
type HTTPHeader struct {
	// name of the header: letters, digits and what else RFC 9110 allows in a token.
	// +required
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern="^[A-Za-z0-9!#$%&*+.^_|~-]+$"
	Name string `json:"name"`

	// value of the header. It may hold expressions, ${key} among them. It is kept in the
	// pod's annotations, so a secret does not belong here.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value,omitempty"`

	// secretKeyRef takes the value, whole, from a Secret in the task's namespace.
	// +optional
	SecretKeyRef *corev1.SecretKeySelector `json:"secretKeyRef,omitempty"`
}

// HTTPTLS says how a server is trusted.
type HTTPTLS struct {
	// ca is a bundle of certificates in PEM that is trusted instead of the authorities of
	// the runner's image.
	// +optional
	CA *CASource `json:"ca,omitempty"`
}

// CASource is where a bundle of certificates is kept.
//
// +kubebuilder:validation:XValidation:rule="has(self.configMapKeyRef) != has(self.secretKeyRef)",message="ca needs a configMapKeyRef or a secretKeyRef, and not both"
type CASource struct {
	// configMapKeyRef names a key of a ConfigMap in the task's namespace.
	// +optional
	ConfigMapKeyRef *corev1.ConfigMapKeySelector `json:"configMapKeyRef,omitempty"`
	// secretKeyRef names a key of a Secret in the task's namespace.
	// +optional
	SecretKeyRef *corev1.SecretKeySelector `json:"secretKeyRef,omitempty"`
}

// KeyHeader is the header that carries the idempotency key.
type KeyHeader struct {
	// name of the header. Default: Idempotency-Key.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern="^[A-Za-z0-9!#$%&*+.^_|~-]+$"
	Name string `json:"name,omitempty"`

	// format is how the key is written. Quoted (the default): as a string of structured
	// fields (RFC 9651), in double quotes, as draft-ietf-httpapi-idempotency-key-header-07
	// asks for. Bare: as it is, which many servers expect.
	// +optional
	Format KeyFormat `json:"format,omitempty"`
}

// KeyFormat is how an idempotency key is written in a header.
// +kubebuilder:validation:Enum=Quoted;Bare
type KeyFormat string

const (
	// KeyQuoted writes the key in double quotes.
	KeyQuoted KeyFormat = "Quoted"
	// KeyBare writes the key as it is.
	KeyBare KeyFormat = "Bare"
)

// CheckWhen is when a check runs.
// +kubebuilder:validation:Enum=Unknown;Before
type CheckWhen string

const (
	// CheckUnknown runs the check where onUnknown is Check and an outcome is unknown.
	CheckUnknown CheckWhen = "Unknown"
	// CheckBefore runs it before the first attempt too: check, then act.
	CheckBefore CheckWhen = "Before"
)

// Check is a read-only action that says whether a step's effect has happened. Its program
// gets the step's own key as AGENTTASK_IDEMPOTENCY_KEY, its expressions as key. A check
// that fails is tried again by the step's retry.
//
// +kubebuilder:validation:XValidation:rule="has(self.run) != has(self.http)",message="a check needs exactly one action: give run with image and command, or http with method and url"
type Check struct {
	// run runs a program in a container.
	// +optional
	Run *RunAction `json:"run,omitempty"`

	// http sends one request.
	// +optional
	HTTP *HTTPAction `json:"http,omitempty"`

	// input is what the program gets as /agenttask/input.json, as with a step's input;
	// its expressions may also use key. Default: the step's own input, an empty object where
	// that is an http action.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Input *apiextensionsv1.JSON `json:"input,omitempty"`

	// when is Unknown (the default): where an outcome is unknown and onUnknown is Check.
	// Before: also before the first attempt, which does not take place where the check
	// answers done.
	// +optional
	When CheckWhen `json:"when,omitempty"`

	// done is an expression that says whether the effect has happened, over result, the
	// check's own output, for example ${result.status == 200}. Default: the check's output
	// must be {"done": true or false, "output": anything}.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Done string `json:"done,omitempty"`

	// output is the step's output where the effect has happened, any JSON with
	// expressions over result, together with done. Default: result.output where done is
	// left out, else result.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Output *apiextensionsv1.JSON `json:"output,omitempty"`

	// timeout is how long one attempt of the check may run. More than 0, at most 24h.
	// Default: 1m.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+(\\\\.[0-9]+)?(ms|s|m|h))+$') && duration(self) > duration('0s') && duration(self) <= duration('24h')",message="timeout must be a duration such as 10s, 90s or 5m, more than 0s and at most 24h; leave it out for the default of 1m"
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// Observe is a read-only action whose output is a view of the world.
//
// +kubebuilder:validation:XValidation:rule="has(self.run) != has(self.http)",message="observe needs exactly one action: give run with image and command, or http with method and url"
type Observe struct {
	// run runs a program in a container.
	// +optional
	Run *RunAction `json:"run,omitempty"`

	// http sends one request.
	// +optional
	HTTP *HTTPAction `json:"http,omitempty"`

	// input is what the program gets as /agenttask/input.json. Its expressions may use
	// params, task and key, the key of the step that is tested. Default: an empty object.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	Input *apiextensionsv1.JSON `json:"input,omitempty"`
}
