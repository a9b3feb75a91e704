"""playbook"""
