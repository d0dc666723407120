package csi

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestWhichExpansionAVolumeNeeds(t *testing.T) {
	gi := func(text string) v1.ResourceList {
		return v1.ResourceList{v1.ResourceStorage: resource.MustParse(text)}
	}
	pending := map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
	with := func(status v1.ClaimResourceStatus) map[v1.ResourceName]v1.ClaimResourceStatus {
		return map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: status}
	}
	many := []v1.PersistentVolumeAccessMode{v1.ReadWriteMany}
	for name, c := range map[string]struct {
		claim   v1.PersistentVolumeClaimStatus
		modes   []v1.PersistentVolumeAccessMode
		notes   map[string]string
		pv      string
		present string
		want    *expansion
	}{
		"none":                      {claim: v1.PersistentVolumeClaimStatus{Capacity: gi("1Gi")}, pv: "1Gi"},
		"of an older controller":    {claim: v1.PersistentVolumeClaimStatus{Capacity: gi("1Gi")}, pv: "2Gi", want: &expansion{}},
		"done here":                 {claim: v1.PersistentVolumeClaimStatus{Capacity: gi("1Gi")}, pv: "2Gi", present: "2Gi"},
		"pending":                   {claim: v1.PersistentVolumeClaimStatus{Capacity: gi("1Gi"), AllocatedResources: gi("2Gi"), AllocatedResourceStatuses: pending}, pv: "2Gi", want: &expansion{begins: true}},
		"in progress":               {claim: v1.PersistentVolumeClaimStatus{Capacity: gi("1Gi"), AllocatedResources: gi("2Gi"), AllocatedResourceStatuses: with(v1.PersistentVolumeClaimNodeResizeInProgress)}, pv: "2Gi", want: &expansion{begins: true}},
		"infeasible":                {claim: v1.PersistentVolumeClaimStatus{Capacity: gi("1Gi"), AllocatedResources: gi("2Gi"), AllocatedResourceStatuses: with(v1.PersistentVolumeClaimNodeResizeInfeasible)}, pv: "2Gi"},
		"the controller is at work": {claim: v1.PersistentVolumeClaimStatus{Capacity: gi("1Gi"), AllocatedResources: gi("2Gi"), AllocatedResourceStatuses: with(v1.PersistentVolumeClaimControllerResizeInProgress)}, pv: "2Gi"},
		"done by the controller":    {claim: v1.PersistentVolumeClaimStatus{Capacity: gi("2Gi"), AllocatedResources: gi("2Gi")}, pv: "2Gi", present: "1Gi"},
		"done on another node":      {claim: v1.PersistentVolumeClaimStatus{Capacity: gi("2Gi"), AllocatedResources: gi("2Gi")}, modes: many, pv: "2Gi", present: "1Gi", want: &expansion{said: true}},
		"needs no node":             {claim: v1.PersistentVolumeClaimStatus{Capacity: gi("2Gi"), AllocatedResources: gi("2Gi")}, modes: many, notes: map[string]string{notRequired: "true"}, pv: "2Gi", present: "1Gi"},
	} {
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: c.notes}, Status: c.claim}
		claim.Spec.AccessModes = c.modes
		pv := &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{Capacity: gi(c.pv)}}
		var present *resource.Quantity
		if c.present != "" {
			q := resource.MustParse(c.present)
			present = &q
		}
		got := expansionOf(claim, pv, present)
		same := got == c.want || got != nil && c.want != nil && got.begins == c.want.begins && got.said == c.want.said
		if !same || got != nil && got.size.String() != "2Gi" {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestWhichFailureIsInfeasible(t *testing.T) {
	claim := &v1.PersistentVolumeClaim{}
	claim.Spec.Resources.Requests = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	same, other := resource.MustParse("1Gi"), resource.MustParse("2Gi")
	for _, c := range []struct {
		size                         resource.Quantity
		byAnswer, failedBefore, want bool
	}{
		{same, false, true, false}, {other, false, false, false}, {other, false, true, true}, {same, true, false, true},
	} {
		if got := isInfeasible(claim, c.size, c.byAnswer, c.failedBefore); got != c.want {
			t.Errorf("%+v: got %t", c, got)
		}
	}
}
