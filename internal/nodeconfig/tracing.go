package nodeconfig

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
)

const (
	// DefaultTracingEndpoint is the endpoint of a tracing section that names none: OTLP's default port.
	DefaultTracingEndpoint = "localhost:4317"
	// maxSamplingRate is the rate at which every trace is sampled.
	maxSamplingRate = 1_000_000
)

// tracingSchemes are the gRPC name resolvers that an endpoint may use.
var tracingSchemes = []string{"dns", "unix", "unix-abstract"}

// validateTracing reports problems that the kubelet reports in a tracing section.
func validateTracing(cfg *kubeletconfigv1beta1.KubeletConfiguration, errs *problems) {
	if cfg.Tracing == nil {
		return
	}
	if rate := cfg.Tracing.SamplingRatePerMillion; rate != nil && (*rate < 0 || *rate > maxSamplingRate) {
		errs.add("tracing.samplingRatePerMillion", fmt.Sprintf("is %d, must be from 0 to %d", *rate, maxSamplingRate))
	}
	if endpoint := cfg.Tracing.Endpoint; endpoint != nil {
		if problem := tracingEndpointProblem(*endpoint); problem != "" {
			errs.add("tracing.endpoint", problem)
		}
	}
}

// tracingEndpointProblem returns the problem with the address of an OTLP receiver. It does not quote parts that may be
// secret.
func tracingEndpointProblem(endpoint string) string {
	const example = "must be HOST:PORT, for example " + DefaultTracingEndpoint + ", or begin with dns:, unix: or unix-abstract:"
	if endpoint == "" {
		return "is empty, " + example
	}
	if !strings.Contains(endpoint, "//") {
		endpoint = "dns://" + endpoint
	}
	parsed, err := url.Parse(endpoint)
	if err != nil {
		return "is no address, " + example
	}
	if !slices.Contains(tracingSchemes, parsed.Scheme) {
		return fmt.Sprintf("begins with %s:, %s", parsed.Scheme, example)
	}
	return ""
}
