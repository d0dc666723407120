package executor

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/quartet-node/quartet/internal/podset"
	"github.com/quartet-node/quartet/internal/statedir"
	"github.com/quartet-node/quartet/internal/telemetry"
	"github.com/quartet-node/quartet/services/syncloop/internal/pod/containerspec"
)

// Services returns the environment variables with the addresses of services.
type Services interface {
	// Variables fails with a [containerspec.Unknown] until the services have been listed once.
	Variables(ctx context.Context, pod *v1.Pod) ([]v1.EnvVar, error)
	// Forget removes a pod that has ended.
	Forget(uid types.UID)
}

// serviceVariables holds the variables of one SyncPod: all containers that it creates get the same ones.
type serviceVariables struct {
	once  sync.Once
	found []v1.EnvVar
	err   error
}

// servicesFile is the name of the file with the last service variables of a pod's containers. While the API server is
// unavailable, a pod that ran on this node before a restart of syncloop or of the machine can continue with them.
const servicesFile = "service-variables.json"

// serviceVariables returns the service variables for the pod's containers. For a pod of the API server that has not run
// here before, it fails until the services have been listed once.
func (s *podSync) serviceVariables(ctx context.Context) ([]v1.EnvVar, error) {
	s.services.once.Do(func() { s.services.found, s.services.err = s.findServices(ctx) })
	return s.services.found, s.services.err
}

func (s *podSync) findServices(ctx context.Context) ([]v1.EnvVar, error) {
	path := filepath.Join(s.m.podDir(string(s.pod.UID)), servicesFile)
	found, err := s.m.cfg.Services.Variables(ctx, s.pod)
	if containerspec.IsUnknown(err) {
		if before, ok := readVariables(path); ok {
			s.m.cfg.Logger.DebugContext(ctx, "the services are not known; containers get the pod's last service variables",
				telemetry.KeyPod, podName(s.pod), telemetry.KeyError, err)
			return before, nil
		}
		if !podset.IsFromAPI(s.pod) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	before, ok := readVariables(path)
	if ok && slices.EqualFunc(before, found, sameVariable) || !ok && len(found) == 0 && !podset.IsFromAPI(s.pod) {
		return found, nil
	}
	if err := writeVariables(path, found); err != nil { // a failure does not stop the start
		s.m.cfg.Logger.WarnContext(ctx, "cannot save the service variables: after a restart of syncloop, containers of the pod restart only when the API server is available",
			telemetry.KeyPod, podName(s.pod), telemetry.KeyError, err)
	}
	return found, nil
}

func sameVariable(a, b v1.EnvVar) bool { return a.Name == b.Name && a.Value == b.Value }

// readVariables reads the file of writeVariables. A file that cannot be read or parsed counts as missing.
func readVariables(path string) ([]v1.EnvVar, bool) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, false
	}
	var variables []v1.EnvVar
	if err := json.Unmarshal(data, &variables); err != nil {
		return nil, false
	}
	return variables, true
}

func writeVariables(path string, variables []v1.EnvVar) error {
	data, err := json.Marshal(variables)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	return statedir.ReplaceFile(path, data, 0o600)
}
