package podresources

import (
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// Listed returns the answer of List for another API of this process. It fails while the pods are unknown. The request
// is not counted.
func Listed(cfg Config) (*podresourcesv1.ListPodResourcesResponse, error) {
	pods, err := cfg.Pods()
	if err != nil {
		return nil, err
	}
	answer := &podresourcesv1.ListPodResourcesResponse{}
	for _, pod := range pods {
		answer.PodResources = append(answer.PodResources, lister{cfg: cfg}.resourcesOf(pod))
	}
	return answer, nil
}
