package executor

import v1 "k8s.io/api/core/v1"

// EnvFile is envFile for tests.
func (m *Manager) EnvFile(pod *v1.Pod, name, path string) (string, error) {
	return m.envFile(pod, name, path)
}
